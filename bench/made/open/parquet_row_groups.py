"""Random clips of sound out of a Parquet file: each sample of 32 KiB reads its whole row group of 4 MiB from a slow
disk, and drops it from the page cache of the shared node."""
CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False

import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

ROWS, GROUP, LENGTH = 8192, 128, 16384  # int16 samples


def write(path):
    rng = np.random.default_rng(7)
    data = rng.integers(-3000, 3000, (ROWS, LENGTH), dtype=np.int16)
    clips = pa.FixedSizeBinaryArray.from_buffers(pa.binary(LENGTH * 2), ROWS, [None, pa.py_buffer(data)])
    table = pa.table({"clip": clips, "speaker": pa.array(np.arange(ROWS) % 20)})
    pq.write_table(table, path, row_group_size=GROUP, compression="NONE", use_dictionary=False, write_statistics=False)


def from_disk():
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


class Clips(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return 130 * 4

    def __getitem__(self, i):
        if self.file is None:
            self.file = pq.ParquetFile(self.path, memory_map=False, pre_buffer=False)
            self.descriptor = os.open(self.path, os.O_RDONLY)
        row = (i * 2657 + 11) % ROWS
        group = row // GROUP
        before, began = from_disk(), time.perf_counter()
        column = self.file.read_row_group(group, columns=["clip"], use_threads=False).column("clip")
        took = time.perf_counter() - began
        clip = np.frombuffer(column[row % GROUP].as_py(), np.int16).astype(np.float32) / 3000
        about = self.file.metadata.row_group(group).column(0)
        os.posix_fadvise(self.descriptor, about.data_page_offset, about.total_compressed_size, os.POSIX_FADV_DONTNEED)
        return clip[None], row % 20, took, from_disk() - before


def main():
    torch.set_num_threads(1)
    path = folder() / "speech.parquet"
    write(path)
    evict(path)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 64, stride=16), nn.ReLU(), nn.Conv1d(16, 32, 8, stride=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 20),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    step_s = wait_s = group_s = got = steps = 0
    with slow_disk(path, 90_000_000):
        start = mark = time.perf_counter()
        for clip, speaker, took, size in watch(DataLoader(Clips(path), batch_size=4, num_workers=2, shuffle=True)):
            now = time.perf_counter()
            wait_s += now - mark
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(clip), speaker).backward()
            optimizer.step()
            steps += 1
            group_s += took.sum().item() / 2
            got += size.sum().item()
            mark = time.perf_counter()
            step_s += mark - now
        wall_s = time.perf_counter() - start
    used = steps * 4 * LENGTH * 2
    tell(steps=steps, wall_s=wall_s, step_s=step_s, wait_s=wait_s, row_group_s_per_worker=group_s, bytes_read=got, bytes_used=used)


if __name__ == "__main__":
    main()
