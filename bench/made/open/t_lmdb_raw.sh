@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant tiny --format files --samples 560
@BIN@/python @CASES@/t_lmdb_raw_plugin.py "$1" 560
