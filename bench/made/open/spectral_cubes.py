"""Crops from hyperspectral cubes in memory; the loader gives numpy batches, as for JAX (a collate function that leaves
them as they are), and the step takes every eighth band of them."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch
from t_timers import Timers

CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False

BANDS, SIDE, BATCH = 224, 112, 8


class Cubes(Dataset):
    """The flight lines, cut beforehand; an item is a batch of neighbours."""

    def __init__(self, count=160):
        rng = np.random.default_rng(2)
        flat = np.frombuffer(rng.bytes(count * BANDS * SIDE * SIDE * 2), np.uint16)
        self.cubes = flat.reshape(count, BANDS, SIDE, SIDE)
        self.labels = rng.integers(0, 5, count)
        self.timers = Timers()

    def __len__(self):
        return len(self.cubes) - BATCH

    def __getitem__(self, i):
        with self.timers.part("item"):
            found = {"cube": self.cubes[i : i + BATCH], "label": self.labels[i : i + BATCH], "first": i}
        self.timers.sample()
        return found


def as_numpy(batch):
    return batch


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Cubes(), batch_size=None, shuffle=True, num_workers=1, collate_fn=as_numpy, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(BANDS // 8, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)
    )
    opt = torch.optim.SGD(model.parameters(), 0.05)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for batch in watch(loader):
            got = time.perf_counter()
            x = torch.from_numpy(batch["cube"][:, ::8].astype(np.float32)) / 65535
            loss = nn.functional.cross_entropy(model(x), torch.from_numpy(batch["label"]))
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
