set -e
@BIN@/benchsuite data generate "$1/webdataset" --workload resnet50 --variant nano --format webdataset --samples 320 --encoding png -o shard_samples=40
