#!/bin/bash
# The data of trial_small_resnet.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant tiny --format files --samples 400 
