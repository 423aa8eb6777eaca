"""BERT sequences from Parquet shards whose catalogue another process keeps locked most of the time."""
import fcntl
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import torch
from t_timers import Timers

torch.set_num_threads(1)

# The sync job, in a process of its own: its remote copy (80 ms) happens under the lock. It ends with the reader.
SYNC = """
import fcntl, os, sys, time
parent, file = os.getppid(), open(sys.argv[1], "a")
while os.getppid() == parent:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(0.080)
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(0.0002)
"""

FIELDS = {
    "input_ids": np.int32,
    "segment_ids": np.int8,
    "masked_lm_positions": np.int32,
    "masked_lm_ids": np.int32,
    "next_sentence_label": np.int8,
}


class Catalogued:
    def __init__(self, dataset):
        self.dataset, self.lock = dataset, None
        self.timers = Timers()

    def open(self):
        folder = self.dataset.folder
        self.table = pyarrow.concat_tables(parquet.read_table(path) for path in sorted(folder.glob("shard-*.parquet")))
        path = folder.parent / "catalogue.lock"
        self.lock = open(path, "a")
        self.sync = subprocess.Popen([sys.executable, "-c", SYNC, str(path)])

    def __getitem__(self, row):
        if self.lock is None:
            self.open()
        with self.timers.part("lock"):
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        raw = self.table.slice(row, 1)
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        with self.timers.part("parse"):
            values = raw.to_pylist()[0]
            sample = {name: np.array(values[name], dtype=kind) for name, kind in FIELDS.items()}
        self.timers.sample()
        return sample
