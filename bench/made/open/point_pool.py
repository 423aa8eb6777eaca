"""PointNet on scans of parts: the points are thinned out by farthest-point sampling in a pool of processes, as many as
there are cores without the one that trains."""
import multiprocessing as mp
import os
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch
from t_timers import Timers

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

POINTS, KEEP, BATCH = 3072, 128, 16
timers = Timers()


def scan(i):
    """A noisy ellipsoid, torus or box, by the number of the sample."""
    rng = np.random.default_rng(i)
    kind = i % 3
    p = rng.normal(size=(POINTS, 3)).astype(np.float32)
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    if kind == 1:
        p[:, :2] += p[:, :2] / np.linalg.norm(p[:, :2], axis=1, keepdims=True)
    elif kind == 2:
        p /= np.abs(p).max(1, keepdims=True)
    return p * rng.uniform(0.7, 1.3, 3).astype(np.float32) + rng.normal(0, 0.01, p.shape).astype(np.float32), kind


def farthest(points, keep):
    chosen = np.zeros(keep, np.int64)
    distance = np.full(len(points), np.inf, np.float32)
    for k in range(1, keep):
        d = ((points - points[chosen[k - 1]]) ** 2).sum(1)
        np.minimum(distance, d, out=distance)
        chosen[k] = distance.argmax()
    return points[chosen]


def batch(ids):
    xs, ys = [], []
    for i in ids:
        with timers.part("points"):
            points, kind = scan(i)
            xs.append(farthest(points, KEEP))
        ys.append(kind)
        timers.sample()
    return np.stack(xs), np.array(ys)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.out = nn.Linear(128, 3)

    def forward(self, x):
        return self.out(self.each(x).amax(1))


def main():
    torch.set_num_threads(1)
    model = PointNet()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    step = waiting = 0.0
    n = 0
    jobs = [range(k * BATCH, (k + 1) * BATCH) for k in range(600)]
    with mp.get_context("fork").Pool(max(1, os.cpu_count() - 1)) as pool:
        start = mark = time.perf_counter()
        for x, y in watch(pool.imap(batch, jobs)):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
