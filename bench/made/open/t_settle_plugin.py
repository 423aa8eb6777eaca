"""Volumes that a scanner's export writes into the same folder: one is taken only if its size has not changed for a while."""

import time

import numpy as np

from t_timers import Timers


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def __getitem__(self, row):
        path = self.dataset.folder / self.dataset.index["file"][row].decode()
        with self.timers.part("settle"):
            before = -1
            while before != path.stat().st_size:
                before = path.stat().st_size
                time.sleep(0.5)
        with self.timers.part("make"):
            random = np.random.default_rng(int(row))
            image = random.standard_normal((1, 64, 64, 64), dtype=np.float32)
            label = (image > 1.5).astype(np.uint8)
        self.timers.sample()
        return {"image": image, "label": label}
