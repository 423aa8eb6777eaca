@BIN@/benchsuite data generate "$1/tokens" --workload gpt_neox --variant tiny --format tokens --samples 1000
