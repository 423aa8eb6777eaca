"""Monsoon forecasts: from the fields of one hour to those of six hours later. The reanalysis is HDF5 with checksums and
chunks of a day, as the archive made it for maps of single days. Nothing is left in the page cache of the shared node."""
import atexit
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/amplification"
RANKS = 1

HOURS, ROWS, COLUMNS, BATCH = 24 * 200, 64, 128, 4
IN_ORDER = applied("shards", False)
KIND = "u1" if applied("smaller_tensors", False) else "f4"


def prepare(path):
    options = {"chunks": (1 if applied("smaller_chunks", False) else 24, ROWS, COLUMNS), "fletcher32": True}
    if applied("cheaper_data", False):
        options = {}
    rng = np.random.default_rng(5)
    waves = rng.uniform(0, 255, (24 + HOURS % 24 + 48, ROWS, COLUMNS))
    with h5py.File(path, "w") as file:
        fields = file.create_dataset("t850", (HOURS, ROWS, COLUMNS), KIND, **options)
        for day in range(0, HOURS, 24):
            at = day // 24 % 48
            fields[day : day + 24] = waves[at : at + 24].astype(KIND)


class Fields(Dataset):
    def __init__(self, path):
        self.path, self.fields = path, None

    def __len__(self):
        return HOURS - 6

    def note(self, chunk):
        self.places[chunk.chunk_offset[0] // self.chunked] = chunk.byte_offset, chunk.size

    def take(self, hour):
        field = self.fields[hour]
        offset, size = self.places[hour // self.chunked] if self.chunked else (self.start + hour * field.nbytes, field.nbytes)
        if not IN_ORDER:
            os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_DONTNEED)
        return torch.from_numpy(field)

    def __getitem__(self, hour):
        if self.fields is None:
            self.fields = h5py.File(self.path, "r", rdcc_nbytes=1 << 25 if IN_ORDER else 1 << 20)["t850"]
            self.chunked = self.fields.chunks and self.fields.chunks[0]
            self.places = {}
            if self.chunked:
                self.fields.id.chunk_iter(self.note)
            else:
                self.start = self.fields.id.get_offset()
            self.descriptor = os.open(self.path, os.O_RDONLY)
        return self.take(hour), self.take(hour + 6)


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU())
        self.up = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1), nn.GELU(), nn.Conv2d(32, 16, 3, 1, 1), nn.PixelShuffle(4))

    def forward(self, x):
        return x + self.up(self.down(x))


def train(loader):
    model = Forecast()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for now, later in watch(loader):
        now, later = now[:, None].float() / 255, later[:, None].float() / 255
        loss = nn.functional.l1_loss(model(now), later)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder()
    path = root / "reanalysis.h5"
    prepare(path)
    evict(path)
    source = path
    if applied("staging", False):
        local = tempfile.mkdtemp(dir="/dev/shm")
        atexit.register(shutil.rmtree, local, True)
        source = Path(shutil.copy(path, local))
    fields = Fields(source)
    sampler = SequentialSampler(fields) if IN_ORDER else RandomSampler(fields, num_samples=20 * len(fields))
    with contextlib.nullcontext() if applied("faster_storage", False) else slow_disk(root, 50_000_000):
        train(DataLoader(
            fields, batch_size=BATCH, sampler=sampler, num_workers=applied("more_workers", 2),
            prefetch_factor=applied("longer_queue", 2), persistent_workers=applied("staying_workers", False),
        ))
    os.remove(path)


if __name__ == "__main__":
    main()
