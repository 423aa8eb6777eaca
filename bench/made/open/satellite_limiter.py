"""Land-cover tiles by a thread pool. The client's rate limiter (eight requests a second) was left in when the tiles
moved to the local disk: the reader threads sleep in it."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False
TILES = 190


class RateLimiter:
    def __init__(self, per_second):
        self.gap, self.next, self.lock = 1 / per_second, 0.0, threading.Lock()

    def acquire(self):
        with self.lock:
            now = time.monotonic()
            self.next = max(self.next + self.gap, now)
            pause = self.next - now
        time.sleep(pause)
        return pause


class TileClient:
    def __init__(self, root):
        self.root, self.limit = root, RateLimiter(8)

    def fetch(self, n):
        slept = self.limit.acquire()
        with np.load(self.root / f"tile_{n:04d}.npz") as tile:
            return torch.from_numpy(tile["bands"]), torch.from_numpy(tile["cover"]), slept


class TileBatches:
    def __init__(self, client, threads=3):
        self.client, self.threads = client, threads

    def __len__(self):
        return TILES

    def __iter__(self):
        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(self.client.fetch, np.random.permutation(TILES))


def main():
    torch.set_num_threads(1)
    root, rng = folder(), np.random.default_rng(8)
    for n in range(TILES):
        bands = rng.standard_normal((8, 4, 32, 32), dtype=np.float32)
        np.savez(root / f"tile_{n:04d}.npz", bands=bands, cover=(bands[:, 0] > 0).astype(np.int64))
    model = nn.Sequential(nn.Conv2d(4, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 2, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    loader = watch(TileBatches(TileClient(root)))
    step = waiting = slept = 0.0
    steps = 0
    start = mark = time.perf_counter()
    for bands, cover, pause in loader:
        got = time.perf_counter()
        opt.zero_grad()
        nn.functional.cross_entropy(model(bands), cover).backward()
        opt.step()
        steps, slept, waiting = steps + 1, slept + pause / 3, waiting + got - mark
        mark = time.perf_counter()
        step += mark - got
    tell(wall=time.perf_counter() - start, steps=steps, step=step, waiting=waiting, cause=slept, cause_is="time.sleep, mean of three threads")


if __name__ == "__main__":
    main()
