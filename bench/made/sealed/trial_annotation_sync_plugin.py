"""Labels from a file that annotators' tool keeps up to date: it rewrites it under an exclusive lock, readers share one."""

import fcntl
import os
import subprocess
import sys
import tempfile

from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from t_timers import Timers  # noqa: E402

TOOL = """
import fcntl, os, select, sys, time
path = sys.argv[1]
while not select.select([sys.stdin], [], [], 0.006)[0]:
    with open(path, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        time.sleep(0.065)                      # it gets what is new from its server
        text = file.read()
        file.seek(0)
        file.write(text)
        file.truncate()
        file.flush()
        fcntl.lockf(file, fcntl.LOCK_UN)
os.unlink(path)
"""

if "ANNOTATIONS" not in os.environ:
    descriptor, os.environ["ANNOTATIONS"] = tempfile.mkstemp(suffix=".txt")
    os.close(descriptor)
    _tool = subprocess.Popen([sys.executable, "-c", TOOL, os.environ["ANNOTATIONS"]], stdin=subprocess.PIPE, start_new_session=True)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        with open(os.environ["ANNOTATIONS"], "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            file.write("".join(f"{int(label)}\n" for label in dataset.index["label"]))
            file.truncate()

    def label(self, row):
        with open(os.environ["ANNOTATIONS"]) as file:
            with self.timers.part("locking"):
                fcntl.lockf(file, fcntl.LOCK_SH)
            for i, line in enumerate(file):
                if i == row:
                    return int(line)

    def __getitem__(self, row):
        label = self.label(row)
        with self.timers.part("image"):
            image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
            image.draft("RGB", (224, 224))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": label}
