"""Labels by `jq` from a JSON file of annotations in COCO's form."""

import os
import subprocess
import sys

from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from t_timers import Timers  # noqa: E402


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        self.json = dataset.folder.parent / "instances.json"
        if not self.json.exists():
            self.json = dataset.folder / "instances.json"

    def label(self, row):
        name = self.dataset.index["file"][row].decode()
        query = "[.annotations[] | select(.file_name == $name) | .category_id][0]"
        return int(subprocess.run(["jq", "-c", "--arg", "name", name, query, str(self.json)], check=True, capture_output=True).stdout)

    def __getitem__(self, row):
        with self.timers.part("jq"):
            label = self.label(row)
        with self.timers.part("image"):
            image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
            image.draft("RGB", (224, 224))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": label}
