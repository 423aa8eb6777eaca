"""Four workers each inflate and resample with four threads of their own: sixteen busy threads on two cores."""

import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import folder, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = True  # decoding is what the threads are busy with

PIECES = 8


def cpu_and_delay() -> tuple:
    ran = waited = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                a, b, _ = file.read().split()
        except OSError:
            continue
        ran, waited = ran + int(a), waited + int(b)
    return ran / 1e9, waited / 1e9


class Slides(Dataset):
    def __init__(self, root) -> None:
        self.root = root
        self.pool = None

    def __len__(self) -> int:
        return 1 << 20

    def tile(self, path):
        raw = zlib.decompress(path.read_bytes())
        pixels = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(1, 3, 512, 512)
        return nn.functional.interpolate(pixels.float(), size=(64, 64), mode="bicubic", antialias=True)[0]

    def __getitem__(self, i):
        if self.pool is None:
            assert get_worker_info() is not None
            torch.set_num_threads(1)
            self.pool = ThreadPoolExecutor(4)
        before = cpu_and_delay()
        paths = [self.root / f"tile{(i * PIECES + k) % 24}.z" for k in range(PIECES)]
        tiles = torch.stack(list(self.pool.map(self.tile, paths)))
        after = cpu_and_delay()
        return tiles, after[0] - before[0], after[1] - before[1]


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(0)
    for k in range(24):
        smooth = np.cumsum(rng.integers(-2, 3, (3, 512, 512)), axis=2).astype(np.uint8)
        (root / f"tile{k}.z").write_bytes(zlib.compress(smooth.tobytes(), 6))
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 1))
    optimizer = torch.optim.Adam(net.parameters())
    loader = DataLoader(Slides(root), batch_size=2, num_workers=4, persistent_workers=True)
    rows = []
    begun = last = time.perf_counter()
    for tiles, ran, waited in watch(loader):
        got = time.perf_counter()
        loss = net(tiles.flatten(0, 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        rows.append((end - last, got - last, float(ran.sum()), float(waited.sum())))
        last = end
        if len(rows) > 75 and end - begun > 23:
            break
    step_s, wait_s, ran_s, waited_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=wait_s * waited_s / (ran_s + waited_s), steps=len(rows) - 10,
         share_of_reader_time_without_core=waited_s / (ran_s + waited_s))


if __name__ == "__main__":
    main()
