#!/bin/bash
# The data of trial_wordpiece.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/data" --workload bert --variant tiny --format files --samples 3000
