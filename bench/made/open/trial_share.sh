#!/bin/bash
# The data of trial_share.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/data" --workload resnet50 --variant resnet18 --format hdf5 --samples 200
