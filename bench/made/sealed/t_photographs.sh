set -e
@BIN@/benchsuite data generate "$1/webdataset" --workload resnet50 --format webdataset --samples 500 --seed 5 -o shard_samples=125
