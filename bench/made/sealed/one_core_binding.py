"""The launcher binds the rank to one core, and its three workers inherit that: they take turns on it while the other core is idle."""
import os
import time

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False


def bind(local_rank=0):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def queued():
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


class Volumes(IterableDataset):
    def __init__(self, path):
        self.volume = np.load(path)

    def __iter__(self):
        rng = np.random.default_rng(get_worker_info().seed % 2**32)
        while True:
            wall, before = time.perf_counter(), queued()
            z, y, x = rng.integers(0, 64, 3)
            part = self.volume[z : z + 24, y : y + 24, x : x + 24].astype(np.float32)
            part = ndimage.rotate(part, rng.uniform(-15, 15), (1, 2), reshape=False, order=1)
            part = ndimage.gaussian_filter(part, rng.uniform(0.5, 1.5))
            yield torch.from_numpy(part[None]), float(z > 32), time.perf_counter() - wall, queued() - before


def main():
    path = folder() / "volume.npy"
    np.save(path, np.random.default_rng(1).integers(0, 255, (88, 88, 88), np.uint8))
    bind()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv3d(1, 4, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))
    model(torch.zeros(1, 1, 24, 24, 24))
    optimizer = torch.optim.Adam(model.parameters())
    rows = []
    loader = DataLoader(Volumes(path), batch_size=16, num_workers=3)
    begin = last = time.perf_counter()
    for x, y, wall, waited in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x / 255)[:, 0], y.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        rows.append((now - last, got - last, waited.sum().item() / 3, wall.sum().item() / 3))
        last = now
        if now - begin > 21.5 and len(rows) > 75:
            break
    step, wait, waited, wall = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=waited, workers_wall_s=wall, steps=len(rows))


if __name__ == "__main__":
    main()
