"""Land cover from satellite tiles: each tile is four files, one for each band; a pool of threads gets them ahead."""
import os
import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

BANDS = ("B02", "B03", "B04", "B08")
SIDE, TILES, BATCH = 256, 440, 4
clock = threading.local()
sums = []                      # one list of seconds for each thread of the pool


def archive(root):
    rng = np.random.default_rng(4)
    paths = []
    for t in range(TILES):
        for band in BANDS:
            path = root / f"T32UQD_{t:04d}_{band}.raw"
            path.write_bytes(rng.bytes(SIDE * SIDE * 2))
            paths.append(path)
    os.sync()
    evict(*paths)


def read_tile(root, t):
    if not hasattr(clock, "seconds"):
        clock.seconds = [0.0]
        sums.append(clock.seconds)
    planes = []
    for band in BANDS:
        began = time.perf_counter()
        with open(root / f"T32UQD_{t:04d}_{band}.raw", "rb") as f:
            raw = f.read()
        clock.seconds[0] += time.perf_counter() - began
        planes.append(np.frombuffer(raw, np.uint16).reshape(SIDE, SIDE))
    tile = torch.from_numpy(np.stack(planes).astype(np.float32)) / 65535
    return tile, int(tile[3].mean() > tile[2].mean())


def tiles(root, order, pool, ahead=12):
    pending = deque()
    batch = []
    for t in order:
        pending.append(pool.submit(read_tile, root, t))
        if len(pending) < ahead:
            continue
        batch.append(pending.popleft().result())
        if len(batch) == BATCH:
            yield torch.stack([b[0] for b in batch]), torch.tensor([b[1] for b in batch])
            batch = []
    for future in pending:
        batch.append(future.result())
        if len(batch) == BATCH:
            yield torch.stack([b[0] for b in batch]), torch.tensor([b[1] for b in batch])
            batch = []


def main():
    torch.set_num_threads(1)
    root = folder()
    archive(root)
    model = nn.Sequential(
        nn.Conv2d(4, 24, 8, 8), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.Conv2d(48, 64, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2),
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    nn.functional.cross_entropy(model(torch.zeros(1, 4, SIDE, SIDE)), torch.tensor([0])).backward()   # imports, buffers
    opt.step()
    order = random.Random(0).sample(range(TILES), TILES)
    step = waiting = 0.0
    n = 0
    with slow_disk(root, 8_000_000), ThreadPoolExecutor(3) as pool:
        start = mark = time.perf_counter()
        for x, y in watch(tiles(root, order, pool)):
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
        wall = time.perf_counter() - start
        pool.shutdown(cancel_futures=True)
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause_per_thread=[s[0] for s in sums])


if __name__ == "__main__":
    main()
