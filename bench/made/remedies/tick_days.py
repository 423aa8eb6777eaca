"""Next-day volatility from a day of ticks of one share: each day of each share is a file of its own, as the exchange
delivers it; one tick is a row of eight float32."""
import atexit
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/reads"
RANKS = 1

DAYS, TICKS, FIELDS, BATCH, PER_SHARD = 640, 16384, 8, 4, 80
IN_ORDER = applied("shards", False)
KIND = np.float16 if applied("smaller_tensors", False) else np.float32


def prepare(root):
    rng = np.random.default_rng(3)
    base = rng.standard_normal((TICKS * 3, FIELDS), dtype=np.float32)
    shard = None
    for day in range(DAYS):
        start = int(rng.integers(0, 2 * TICKS))
        ticks = (base[start : start + TICKS] * (0.5 + day % 7 / 4)).astype(KIND)
        if not IN_ORDER:
            ticks.tofile(root / f"day_{day:04d}.ticks")
            continue
        if day % PER_SHARD == 0:
            shard = open(root / f"days_{day // PER_SHARD:02d}.ticks", "wb")
        ticks.tofile(shard)
        if day % PER_SHARD == PER_SHARD - 1:
            shard.close()


class TickDays(Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return DAYS * 100 if IN_ORDER else DAYS

    def __getitem__(self, day):
        day %= DAYS
        target = float(0.5 + day % 7 / 4)
        if IN_ORDER:
            path, offset = self.root / f"days_{day // PER_SHARD:02d}.ticks", day % PER_SHARD
        else:
            path, offset = self.root / f"day_{day:04d}.ticks", 0
        size = TICKS * FIELDS
        ticks = np.fromfile(path, KIND, size, offset=offset * size * np.dtype(KIND).itemsize)
        return torch.from_numpy(ticks.reshape(TICKS, FIELDS)), torch.tensor(target)


def train(loader):
    model = nn.Sequential(
        nn.Conv1d(FIELDS, 48, 16, 8), nn.ReLU(), nn.Conv1d(48, 64, 9, 2), nn.ReLU(), nn.Conv1d(64, 64, 9, 2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 1),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for ticks, target in watch(loader):
        loss = nn.functional.mse_loss(model(ticks.float().transpose(1, 2))[:, 0], target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder() / "ticks"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    prepare(root)
    os.sync()
    evict(*root.iterdir())
    source = root
    if applied("staging", False):
        source = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, source, True)
        shutil.copytree(root, source, dirs_exist_ok=True)
    days = TickDays(source)
    sampler = None if IN_ORDER else RandomSampler(days, num_samples=100 * DAYS)
    workers = applied("more_workers", 0)
    options = {}
    if workers:
        options = {"prefetch_factor": applied("longer_queue", 2), "persistent_workers": applied("staying_workers", False)}
    with contextlib.nullcontext() if applied("faster_storage", False) else slow_disk(root, 20_000_000):
        train(DataLoader(days, batch_size=BATCH, sampler=sampler, num_workers=workers, **options))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
