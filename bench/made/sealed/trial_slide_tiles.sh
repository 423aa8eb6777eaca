#!/bin/bash
# The data of trial_slide_tiles.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 320
@BIN@/python - "$1/tiles" <<'PY'
import os, sys
import numpy as np
from PIL import Image
os.makedirs(sys.argv[1])
rng = np.random.default_rng(0)
noise = rng.integers(0, 255, (1200, 380, 3), dtype=np.uint8)
for i in range(320):
    at = int(rng.integers(0, 800))
    name = f"{sys.argv[1]}/{i:04d}.bmp"
    Image.fromarray(noise[at : at + 380]).save(name)
    with open(name, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
PY
