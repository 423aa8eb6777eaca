set -e
@BIN@/benchsuite data generate "$1/lmdb" --workload resnet50 --variant tiny --format lmdb --samples 420 
