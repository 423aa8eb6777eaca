#!/bin/bash
# The data of trial_catalog.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/data" --workload resnet50 --variant reference --format files --samples 200
