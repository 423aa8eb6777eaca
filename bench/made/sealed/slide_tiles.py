"""A classifier of pathology tiles: two workers pread tiles of 192 KiB at random places of one raw slide, from a disk that gives 12 MB/s."""
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False
SIDE = 256
TILE = SIDE * SIDE * 3
TILES = 1700


class Slide(Dataset):
    def __init__(self, path):
        self.path, self.fd = path, None

    def __len__(self):
        return TILES

    def __getitem__(self, i):
        if self.fd is None:
            self.fd = os.open(self.path, os.O_RDONLY)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        start = time.perf_counter()
        raw = os.pread(self.fd, TILE, i * TILE)
        took = time.perf_counter() - start
        tile = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3).copy()).permute(2, 0, 1)
        return tile, raw[0] % 2, took


def main():
    path = folder() / "slide.raw"
    with open(path, "wb") as out:
        for _ in range(TILES // 100):
            out.write(os.urandom(TILE * 100))
    evict(path)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    waits, reads, steps = [], [], []
    with slow_disk(path.parent, 12_000_000):
        loader = DataLoader(Slide(path), batch_size=8, shuffle=True, num_workers=2, drop_last=True)
        begin = last = time.perf_counter()
        for tiles, labels, took in watch(loader):
            waits.append(time.perf_counter() - last)
            loss = nn.functional.cross_entropy(model(tiles.float().div_(255)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reads.append(took.sum().item() / 2)
            now = time.perf_counter()
            steps.append(now - last)
            last = now
            if now - begin > 24 and len(steps) > 75:
                break
        del loader
    mean = lambda values: round(float(np.mean(values[10:])), 5)
    tell(step_s=mean(steps), waiting_for_input_s=mean(waits), cause_s=mean(reads), steps=len(steps))


if __name__ == "__main__":
    main()
