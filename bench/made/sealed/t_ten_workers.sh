set -e
@BIN@/benchsuite data generate "$1/lmdb" --workload resnet50 --format lmdb --samples 480 --seed 3
