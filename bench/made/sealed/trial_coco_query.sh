#!/bin/bash
# The data of trial_coco_query.yaml: its folder is the first argument.
set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant reference --format files --samples 300
@BIN@/python - "$1/files" "$1/instances.json" <<'PY'
import json, pathlib, random, sys
random.seed(0)
root = pathlib.Path(sys.argv[1])
names = sorted(str(p.relative_to(root)) for p in root.rglob("*.jpg"))
rows = [
    {"id": k, "file_name": name, "category_id": int(name.split("/")[-2][5:]), "bbox": [round(random.random() * 500, 2) for _ in range(4)]}
    for k, name in enumerate(names * 13)
]
json.dump({"annotations": rows}, open(sys.argv[2], "w"))
PY
