"""Volumes in all flips and in three windows of intensity, prepared once and kept by one process; the reader gets a
volume's whole stack by a queue, and takes one of its 24 versions."""

import multiprocessing
import random

import numpy as np
from t_clock import Timers


def keep(folder, files, rows, stacks):
    ready = {}
    for row in iter(rows.get, None):
        if row not in ready:
            image = np.load(folder / files[row])[0].astype("f4")
            label = np.load(folder / files[row].replace("_x", "_y"))[0]
            axes = [[a for a in range(3) if k >> a & 1] for k in range(8)]
            windows = [np.clip(image, -c, c) / c for c in (1.0, 2.0, 4.0)]
            ready[row] = np.stack([np.flip(w, a) for a in axes for w in windows]), np.stack([np.flip(label, a) for a in axes])
        stacks.put(ready[row])


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()
        context = multiprocessing.get_context("fork")
        self.rows, self.stacks = context.Queue(), context.Queue()
        files = [name.decode() for name in dataset.index["file"]]
        context.Process(target=keep, args=(dataset.folder, files, self.rows, self.stacks), daemon=True).start()

    def __getitem__(self, row):
        with self.timers.part("get"):
            self.rows.put(int(row))
            images, labels = self.stacks.get()
        version = random.randrange(24)
        sample = {"image": images[version][None].astype("f4"), "label": labels[version // 3][None].copy()}
        self.timers.sample()
        return sample
