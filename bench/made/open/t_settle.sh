@BIN@/benchsuite data generate "$1/files" --workload unet3d --variant tiny --format files --samples 170
