#!/bin/bash
# The data of trial_arrow_frames.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 480
@BIN@/python - "$1/frames.arrow" <<'PY'
import os, sys
import numpy as np
import pyarrow as pa
rng = np.random.default_rng(0)
noise = rng.integers(0, 255, 2_000_000, dtype=np.uint8)
schema = pa.schema([("pixels", pa.binary())])
with pa.OSFile(sys.argv[1], "wb") as sink, pa.ipc.new_file(sink, schema) as out:
    for i in range(480):
        at = int(rng.integers(0, 1_500_000))
        out.write_batch(pa.record_batch([pa.array([noise[at : at + 384 * 384 * 3].tobytes()], pa.binary())], schema=schema))
with open(sys.argv[1], "rb") as f:
    os.fsync(f.fileno())
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
PY
