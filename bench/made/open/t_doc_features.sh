set -e
@BIN@/benchsuite data generate "$1/hdf5" --workload bert --variant tiny --format hdf5 --samples 2000 
