set -e
@BIN@/benchsuite data generate "$1/hdf5" --workload resnet50 --format hdf5 --samples 200
