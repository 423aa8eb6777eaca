#!/bin/bash
# The data of trial_prepared.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/data" --workload unet3d --variant tiny --format files --samples 8
