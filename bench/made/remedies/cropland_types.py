"""Crops from space: a season of small patches in one HDF5 file; which crop grows in a patch. The patches are taken at random.
The node is shared, and what has been read is dropped from the page cache, as its users are asked to do."""
import atexit
import os
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/amplification"
RANKS = 1

PATCHES, BANDS, SIDE, BATCH = 3216, 4, 96, 4
CHUNK = 1 if applied("smaller_chunks", False) else 12
ORDERED = applied("shards", False)
SMALL = applied("smaller_tensors", False)


class Patches(Dataset):
    def __init__(self, path):
        self.path, self.patches = path, None

    def __len__(self):
        return PATCHES

    def __getitem__(self, i):
        if self.patches is None:
            self.patches = h5py.File(self.path, rdcc_nbytes=64 << 20 if ORDERED else 1 << 20)["reflectance"]
            self.descriptor = os.open(self.path, os.O_RDONLY)
        patch = torch.from_numpy(self.patches[i].astype(np.int16))
        if not ORDERED or i % CHUNK == CHUNK - 1:
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return patch if SMALL else patch.float() / 10000, i % 6


def prepare(path):
    rng = np.random.default_rng(0)
    pool = rng.integers(200, 6000, (48, BANDS, SIDE, SIDE), dtype=np.uint16)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("reflectance", (PATCHES, BANDS, SIDE, SIDE), np.uint16, chunks=(CHUNK, BANDS, SIDE, SIDE))
        for i in range(0, PATCHES, 48):
            data[i : i + 48] = np.roll(pool, i, axis=0)
    evict(path)


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    root = folder()
    path = root / f"season_{CHUNK}.h5"
    prepare(path)
    if applied("staging", False):
        fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, fast, True)
        path = Path(shutil.copy(path, fast))
    rng = np.random.default_rng(1)
    order = [i for _ in range(8) for i in (range(PATCHES) if ORDERED else rng.permutation(PATCHES).tolist())]
    model = nn.Sequential(
        nn.Conv2d(BANDS, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU(),
        nn.Conv2d(48, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 6),
    )
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    workers = applied("more_workers", 2)
    marks = []
    with nullcontext() if applied("faster_storage", False) else slow_disk(root, 40_000_000):
        loader = DataLoader(
            Patches(path), batch_size=BATCH, sampler=order, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
            persistent_workers=applied("staying_workers", False) and workers > 0,
        )
        for patch, crop in watch(loader):
            loss = nn.functional.cross_entropy(model(patch.float() / 10000 if SMALL else patch), crop)
            opt.zero_grad()
            loss.backward()
            opt.step()
            marks.append(time.perf_counter())
            if long_enough(marks):
                break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
