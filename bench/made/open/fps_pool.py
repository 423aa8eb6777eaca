"""CAD point clouds: a multiprocessing.Pool of two does farthest point sampling and k nearest neighbours for each cloud.
The pool's processes compute on samples; the small network waits for them."""
CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

import multiprocessing as mp
import time

import numpy as np
import torch
from case import tell, watch
from torch import nn

POINTS, KEEP, K, BATCH, STEPS = 6000, 320, 12, 8, 400
clouds = None


def farthest(p, m, rng):
    chosen = np.empty(m, np.int64)
    dist = np.full(len(p), np.inf, np.float32)
    far = int(rng.integers(len(p)))
    for i in range(m):
        chosen[i] = far
        dist = np.minimum(dist, ((p - p[far]) ** 2).sum(1))
        far = int(dist.argmax())
    return chosen


def neighbourhoods(task):
    seed, rows = task
    rng = np.random.default_rng(seed)
    t0 = time.perf_counter()
    out = np.empty((len(rows), KEEP, K, 3), np.float32)
    for b, row in enumerate(rows):
        p = clouds[row]
        c = p[farthest(p, KEEP, rng)]
        near = np.argpartition(((c[:, None] - c[None]) ** 2).sum(-1), K, axis=1)[:, :K]
        out[b] = c[near] - c[:, None]
    return out, [r % 10 for r in rows], time.perf_counter() - t0


def batches(pool):
    rng = np.random.default_rng(1)
    tasks = ((s, rng.integers(0, len(clouds), BATCH).tolist()) for s in range(STEPS))
    for x, y, spent in pool.imap(neighbourhoods, tasks):
        yield torch.from_numpy(x), torch.tensor(y), spent


class EdgeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(3, 24), nn.ReLU())
        self.node = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.node(self.edge(x).amax(2)).amax(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    clouds = np.random.default_rng(0).standard_normal((300, POINTS, 3), dtype=np.float32)
    clouds /= np.linalg.norm(clouds, axis=-1, keepdims=True)
    net = EdgeNet()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    wait = step = spent = 0.0
    n = 0
    with mp.get_context("fork").Pool(2) as pool:
        begin = t = time.perf_counter()
        for x, y, s in watch(batches(pool)):
            got = time.perf_counter()
            wait += got - t
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            spent, n = spent + s, n + 1
            t = time.perf_counter()
            step += t - got
            if t - begin > 26:
                break
        wall = time.perf_counter() - begin
        pool.terminate()
        pool.join()
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=min(wait, spent / 2), computed_in_pool=spent)
