"""Photographs without their grain: a small network of residual blocks on crops of photographs that are kept as arrays."""
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "compute/compute"
RANKS = 1

SIDE, BATCH, WIDTH = 48, 6, 32
PHOTOS = sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))[:40]
WHOLE = applied("smaller_tensors", False)


class Crops(Dataset):
    def __init__(self):
        self.photos = np.stack([np.asarray(Image.open(path).convert("RGB").resize((160, 160))) for path in PHOTOS])

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        row, column = i * 31 % (160 - SIDE), i * 17 % (160 - SIDE)
        crop = torch.from_numpy(self.photos[i % len(PHOTOS), row : row + SIDE, column : column + SIDE]).permute(2, 0, 1)
        return crop.contiguous() if WHOLE else crop / 255


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    workers = applied("more_workers", 1)
    options = {}
    if workers:
        options = {"prefetch_factor": applied("longer_queue", 2), "persistent_workers": applied("staying_workers", False)}
    loader = DataLoader(Crops(), batch_size=BATCH, num_workers=workers, **options)
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *(Block() for _ in range(6)), nn.Conv2d(WIDTH, 3, 3, padding=1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for crop in watch(loader):
        clean = crop / 255 if WHOLE else crop
        noisy = clean + 0.1 * torch.randn_like(clean)
        loss = nn.functional.l1_loss(noisy - model(noisy), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
