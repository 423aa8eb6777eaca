#!/bin/bash
# The data of trial_neox.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/data" --workload gpt_neox --variant tiny --format webdataset --samples 2000
