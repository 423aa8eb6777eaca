set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --format files --samples 1500 --variant tiny --seed 9
@BIN@/python - "$1/pixels.raw" <<'P'
import os, sys
with open(sys.argv[1], "wb") as out:
    for _ in range(1500):
        out.write(os.urandom(512 * 512 * 3))
    out.flush()
    os.fsync(out.fileno())
P
