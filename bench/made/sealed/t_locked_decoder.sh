set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --format files --samples 300 --seed 2
