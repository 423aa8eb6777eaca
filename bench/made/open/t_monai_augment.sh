set -e
@BIN@/benchsuite data generate "$1/hdf5" --workload unet3d --variant tiny --format hdf5 --samples 60 
