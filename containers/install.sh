#!/bin/sh
# Installs benchsuite beside the PyTorch that an image has: install.sh SOURCE, as root.
set -eu
python3 -m venv --system-site-packages /opt/benchsuite
/opt/benchsuite/bin/python -m pip install --no-cache-dir "$1[${EXTRAS:-all}]" "$1/planner"
ln -sf /opt/benchsuite/bin/benchsuite /usr/local/bin/benchsuite
benchsuite --version
