#!/bin/bash
# The data of trial_mixer_photos.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 340
