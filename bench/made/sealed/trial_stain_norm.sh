#!/bin/bash
# The data of trial_stain_norm.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 300
