@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant tiny --format files --samples 1200
