@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 640
