"""Volumes from an LMDB environment, copied out of its map; the disk is slow for this process and its children."""

import atexit
import contextlib
import io
import os
from pathlib import Path

import lmdb
import numpy as np
from case import evict, slow_disk
from t_clock import Timers

_stack = contextlib.ExitStack()
_stack.enter_context(slow_disk(Path(__file__).parent, 15_000_000))
atexit.register(_stack.close)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        self.environment = self.pid = None
        evict(Path(dataset.folder) / "data.mdb")

    def __getitem__(self, row):
        if self.pid != os.getpid():
            self.pid = os.getpid()
            self.environment = lmdb.open(str(self.dataset.folder), readonly=True, lock=False, readahead=False)
        with self.timers.part("get"), self.environment.begin(buffers=True) as transaction:
            image = np.load(io.BytesIO(transaction.get(b"%010d/image" % row)))
            label = np.load(io.BytesIO(transaction.get(b"%010d/label" % row)))
        self.timers.sample()
        return {"image": image, "label": label}
