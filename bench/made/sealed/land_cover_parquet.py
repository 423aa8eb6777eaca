"""Land cover from four-band tiles that are kept as a binary column of one Parquet file, sampled by class weight."""
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler, get_worker_info

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False

TILES, GROUP = 1600, 32


def make(path):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 8, TILES)
    tiles = [(rng.integers(0, 160, 65536, dtype=np.uint8) + np.uint8(10 * k)).tobytes() for k in labels]
    table = pa.table({"tile": pa.array(tiles, pa.binary()), "label": labels})
    pq.write_table(table, path, row_group_size=GROUP, compression="none", use_dictionary=False, write_statistics=False)
    return labels


class Tiles(Dataset):
    def __init__(self, path):
        self.path, self.table = path, None
        self.seconds = torch.zeros(2, dtype=torch.float64).share_memory_()

    def __len__(self):
        return TILES

    def __getitem__(self, i):
        if self.table is None:
            self.file = open(self.path, "rb")
            self.table = pq.ParquetFile(self.file, pre_buffer=False)
        began = time.perf_counter()
        group = self.table.read_row_group(i // GROUP, use_threads=False)
        # the nodes are shared: what has been read must not push the others out of the page cache
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.seconds[get_worker_info().id] += time.perf_counter() - began
        tile = np.frombuffer(group["tile"][i % GROUP].as_buffer(), np.uint8).reshape(4, 128, 128)
        return torch.from_numpy(tile.astype(np.float32) / 255), group["label"][i % GROUP].as_py()


def main():
    torch.set_num_threads(1)
    path = folder() / "tiles.parquet"
    labels = make(path)
    evict(path)
    data = Tiles(path)
    weights = 1 / np.bincount(labels)[labels]
    loader = DataLoader(data, batch_size=6, sampler=WeightedRandomSampler(weights, 6000), num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8),
    )
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    step = waiting = 0.0
    n = 0
    with slow_disk(path.parent, 60_000_000):
        start = mark = time.perf_counter()
        for tiles, label in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(tiles), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 23:
                break
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.seconds.sum()) / 2, reading=data.seconds.tolist())


if __name__ == "__main__":
    main()
