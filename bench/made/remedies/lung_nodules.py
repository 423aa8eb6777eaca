"""Nodules in CT of the lung: blocks that lie in memory go to the first, coarse stage, which looks at every fourth voxel of every fourth slice."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1

BLOCKS, SIDE, BATCH = 32, 128, 8
SMALL = applied("smaller_tensors", False)


class Blocks(IterableDataset):
    """Ready batches of blocks that follow each other."""

    def __init__(self):
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 255, (4, SIDE, SIDE, SIDE), dtype=np.uint8)
        self.blocks = np.empty((BLOCKS, 1, SIDE, SIDE, SIDE), np.uint8 if SMALL else np.float32)
        for k in range(BLOCKS):
            self.blocks[k, 0] = np.roll(noise[k % 4], k, axis=1)
            if not SMALL:
                self.blocks[k] /= 255

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(info.id if info else 0)
        while True:
            first = int(rng.integers(0, BLOCKS - BATCH))
            yield self.blocks[first : first + BATCH], np.arange(first, first + BATCH) % 2


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Blocks(), batch_size=None, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(16, 2),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for blocks, nodule in watch(loader):
        coarse = blocks[:, :, ::4, ::4, ::4]
        loss = nn.functional.cross_entropy(model(coarse.float() / 255 if SMALL else coarse), nodule)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
