"""Photographs, with corrections of their labels in a catalog of the curators: readers take a shared lock, the curators'
program an exclusive one while it puts a set of corrections together. It ends with this process."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from t_clock import Timers

CURATORS = """
import fcntl, os, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
with open(sys.argv[1], "r+") as file:
    while True:
        fcntl.lockf(file, fcntl.LOCK_EX)
        time.sleep(0.18)                  # asks its own server for the set
        fcntl.lockf(file, fcntl.LOCK_UN)
        time.sleep(0.02)
"""

if "CATALOG" not in os.environ:
    _catalog = Path(tempfile.mkdtemp(prefix="catalog-")) / "corrections.txt"
    _catalog.write_text("0\n" * 200)  # what is to be added to a label: no correction so far
    os.environ["CATALOG"] = str(_catalog)
    _curators = subprocess.Popen([sys.executable, "-c", CURATORS, _catalog], stdin=subprocess.PIPE, start_new_session=True)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def label(self, row):
        with open(os.environ["CATALOG"]) as file:
            with self.timers.part("acquire"):
                fcntl.lockf(file, fcntl.LOCK_SH)
            corrections = file.read().split()
            fcntl.lockf(file, fcntl.LOCK_UN)
        return int(self.dataset.index["label"][row]) + int(corrections[row])

    def __getitem__(self, row):
        label = self.label(row)
        with self.timers.part("load"):
            image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
            image.draft("RGB", (224, 224))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": label}
