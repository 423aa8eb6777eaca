set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --format files --samples 200 --variant tiny
@BIN@/python - "$1" <<'P'
import subprocess, sys
from pathlib import Path
root = Path(sys.argv[1])
(root / "encrypted").mkdir(exist_ok=True)
for path in sorted((root / "files").rglob("*.jpg")):
    subprocess.run(["openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-iter", "40000", "-pass", "pass:sample", "-in", str(path), "-out", str(root / "encrypted" / path.name)], check=True)
P
