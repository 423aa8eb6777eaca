set -e
@BIN@/benchsuite data generate "$1/parquet" --workload bert --variant tiny --format parquet --samples 1200 -o shard_samples=200
