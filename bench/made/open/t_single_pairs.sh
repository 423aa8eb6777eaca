@BIN@/benchsuite data generate "$1/files" --workload bert --variant tiny --format files --samples 3000
