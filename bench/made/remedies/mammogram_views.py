"""Screening mammography: each view is a .npy of its own on the archive's disk; a small network says whether it is to be recalled."""
import atexit
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/reads"
RANKS = 1

VIEWS, HEIGHT, WIDTH, BATCH, A_FILE = 420, 640, 512, 2, 60
SHARDS = applied("shards", False)
SMALL = applied("smaller_tensors", False)


class Views(Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return VIEWS

    def __getitem__(self, i):
        if SHARDS:
            size = HEIGHT * WIDTH
            view = np.fromfile(self.root / f"views_{i // A_FILE:02d}.raw", np.uint16, size, offset=i % A_FILE * size * 2).reshape(HEIGHT, WIDTH)
        else:
            view = np.load(self.root / f"view_{i:04d}.npy")
        pixels = torch.from_numpy((view >> 4).astype(np.uint8))[None]
        return pixels if SMALL else pixels.float() / 255, i % 3 == 0


def prepare(root):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 1200, (8, HEIGHT, WIDTH), dtype=np.uint16)
    breast = (2600 * np.exp(-(np.linspace(0, 2, WIDTH) ** 2)[None] - np.linspace(-1.5, 1.5, HEIGHT)[:, None] ** 2)).astype(np.uint16)
    paths = set()
    for i in range(VIEWS):
        view = np.roll(noise[i % 8], i * 977) + breast
        if SHARDS:
            path = root / f"views_{i // A_FILE:02d}.raw"
            with open(path, "ab" if i % A_FILE else "wb") as file:
                file.write(view.tobytes())
        else:
            path = root / f"view_{i:04d}.npy"
            np.save(path, view)
        paths.add(path)
    evict(*paths)


def staged(root):
    fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
    atexit.register(shutil.rmtree, fast, True)
    shutil.copytree(root, fast, dirs_exist_ok=True)
    return fast


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    root = folder() / ("in_shards" if SHARDS else "views")
    root.mkdir(exist_ok=True)
    prepare(root)
    if applied("staging", False):
        root = staged(root)
    rng = np.random.default_rng(1)
    order = [i for _ in range(12) for i in (range(VIEWS) if SHARDS else rng.permutation(VIEWS).tolist())]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    workers = applied("more_workers", 0)
    marks = []
    with nullcontext() if applied("faster_storage", False) else slow_disk(folder(), 16_000_000):
        loader = DataLoader(
            Views(root), batch_size=BATCH, sampler=order, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
            persistent_workers=applied("staying_workers", False) and workers > 0,
        )
        for view, recall in watch(loader):
            loss = nn.functional.cross_entropy(model(view.float() / 255 if SMALL else view), recall.long())
            opt.zero_grad()
            loss.backward()
            opt.step()
            marks.append(time.perf_counter())
            if long_enough(marks):
                break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
