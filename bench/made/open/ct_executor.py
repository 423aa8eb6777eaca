"""CT volumes come as ready numpy batches of 57 MB out of a ProcessPoolExecutor's process, which has them all in memory.
Pickling them, pushing them through the pipe and unpickling them is what the loop waits for."""
CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False

import multiprocessing as mp
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from case import tell, watch
from torch import nn

BATCH, STEPS = 4, 150
volumes = None


def load(start):
    t = time.perf_counter()
    batch = volumes[start:start + BATCH]
    labels = np.arange(start, start + BATCH) % 2
    ready = time.perf_counter()
    return batch, labels, ready - t, ready


class Remote:
    def __init__(self, pool, ahead=2):
        self.pool, self.ahead = pool, ahead
        self.produced = self.handed = 0.0

    def submit(self, start):
        f = self.pool.submit(load, start)
        f.add_done_callback(lambda f: setattr(f, "arrived", time.perf_counter()))
        return f

    def __iter__(self):
        starts = iter(np.random.default_rng(0).integers(0, len(volumes) - BATCH, STEPS).tolist())
        queue = deque(self.submit(s) for s, _ in zip(starts, range(self.ahead)))
        while queue:
            f = queue.popleft()
            x, y, made, ready = f.result()
            self.produced += made
            self.handed += getattr(f, "arrived", time.perf_counter()) - ready
            nxt = next(starts, None)
            if nxt is not None:
                queue.append(self.submit(nxt))
            yield torch.from_numpy(x), torch.from_numpy(y)


if __name__ == "__main__":
    torch.set_num_threads(1)
    volumes = np.random.default_rng(2).standard_normal((16, 4, 96, 96, 96), dtype=np.float32)
    net = nn.Sequential(nn.AvgPool3d(4), nn.Conv3d(4, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    wait = step = 0.0
    n = 0
    with ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as pool:
        pool.submit(int, 0).result()
        remote = Remote(pool)
        begin = t0 = time.perf_counter()
        for x, y in watch(remote):
            t1 = time.perf_counter()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            t2 = time.perf_counter()
            wait, step, n, t0 = wait + t1 - t0, step + t2 - t1, n + 1, t2
            if t2 - begin > 27:
                break
        wall = time.perf_counter() - begin
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=min(wait, remote.handed), handed_over=remote.handed, produced=remote.produced)
