"""Patches of slides from a cache folder that other jobs of the group share: readers take a shared flock on the folder
for each batch, the tidying process an exclusive one for each slice of its sweep (it checks the sums of the entries)."""
import fcntl
import hashlib
import multiprocessing as mp
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch
from t_timers import Timers

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False

ENTRIES, SIDE, BATCH = 600, 96, 12
SLICE, PAUSE = 0.3, 0.02           # seconds of the sweep at a time, and between two


class Held:
    """The cache folder's flock."""

    def __init__(self, root, mode):
        self.path, self.mode = root / ".inuse", mode

    def __enter__(self):
        self.file = open(self.path, "a")
        fcntl.flock(self.file, self.mode)

    def __exit__(self, *_):
        self.file.close()


def tidy(root):
    entries = sorted(root.glob("*.npy"))
    k = 0
    while True:
        with Held(root, fcntl.LOCK_EX):
            until = time.monotonic() + SLICE
            while time.monotonic() < until:
                hashlib.sha256(entries[k % len(entries)].read_bytes()).digest()
                k += 1
        time.sleep(PAUSE)


class Patches(Dataset):
    def __init__(self, root):
        self.root, self.labels, self.timers = root, np.arange(ENTRIES) % 2, None

    def __len__(self):
        return ENTRIES

    def __getitems__(self, rows):
        if self.timers is None:
            self.timers = Timers()
        began = time.perf_counter()
        with Held(self.root, fcntl.LOCK_SH):
            self.timers.sums["held"] = self.timers.sums.get("held", 0.0) + time.perf_counter() - began
            with self.timers.part("read"):
                found = [np.load(self.root / f"{i:05d}.npy") for i in rows]
        for _ in rows:
            self.timers.sample()
        return [(torch.from_numpy(p).permute(2, 0, 1).float() / 255, int(self.labels[i])) for p, i in zip(found, rows)]


def main():
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(0)
    for i in range(ENTRIES):
        np.save(root / f"{i:05d}.npy", rng.integers(0, 200 + 40 * (i % 2), (SIDE, SIDE, 3), dtype=np.uint8))
    if not os.environ.get("NO_TIDY"):
        mp.get_context("fork").Process(target=tidy, args=(root,), daemon=True).start()
    loader = DataLoader(Patches(root), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for x, y in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
