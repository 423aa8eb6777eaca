"""PointNet on lidar sweeps: the loader's __iter__ makes a ProcessPoolExecutor (spawn) anew in each short pass, and its
processes import torch, pandas and scipy before the first batch comes."""
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from scipy.spatial import cKDTree

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False
POINTS, SWEEPS, BATCH = 512, 192, 12


def prepare(job):
    """Centre, turn about z, and thin out a few sweeps."""
    path, rows, labels, seed = job
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    clouds = np.load(path)[rows]
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]], np.float32)
    clouds = (clouds - clouds.mean(1, keepdims=True)) @ turn
    clouds = clouds[:, rng.permutation(clouds.shape[1])[:POINTS]]
    centre = [cKDTree(cloud[:64]).query(np.zeros(3))[0] for cloud in clouds]
    clouds[:, 0] = np.asarray(centre, np.float32)[:, None]
    return clouds, labels, time.perf_counter() - began


class PooledSweeps:
    def __init__(self, path, index, workers=2):
        self.path, self.workers, self.seed, self.starting = path, workers, 0, []
        self.labels = pd.read_csv(index)["label"].to_numpy()

    def __iter__(self):
        self.seed += 1
        order = np.random.default_rng(self.seed).permutation(SWEEPS).reshape(-1, BATCH)
        began = time.perf_counter()
        pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"))
        jobs = [(self.path, rows, self.labels[rows], self.seed) for rows in order]
        for n, (x, y, took) in enumerate(pool.map(prepare, jobs)):
            if n == 0:
                self.starting.append(time.perf_counter() - began - took)
            yield torch.from_numpy(x), torch.from_numpy(y)
        pool.shutdown(wait=False)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256))
        self.head = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.head(self.local(x).amax(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = str(folder() / "sweeps.npy")
    np.save(path, np.random.default_rng(0).standard_normal((SWEEPS, 700, 3), dtype=np.float32))
    index = folder() / "index.csv"
    pd.DataFrame({"sweep": range(SWEEPS), "label": np.arange(SWEEPS) % 5}).to_csv(index)
    source = PooledSweeps(path, index)
    loader = watch(source)
    model = PointNet()
    opt = torch.optim.Adam(model.parameters())
    step = waiting = 0.0
    steps, start = 0, time.perf_counter()
    for epoch in range(40):
        t = time.perf_counter()
        for cloud, label in loader:
            u = time.perf_counter()
            waiting += u - t
            loss = nn.functional.cross_entropy(model(cloud), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
            t = time.perf_counter()
            step += t - u
        waiting += time.perf_counter() - t
        if time.perf_counter() - start > 22:
            break
    tell(wall=time.perf_counter() - start, steps=steps, passes=epoch + 1, step=step, waiting=waiting, cause=sum(source.starting))
