"""Outlines of organs in slices of CT: a U-Net of two levels; the slices lie in memory, one reader flips them."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "compute/compute"
RANKS = 1

SLICES, SIDE, ORGANS, BATCH = 200, 128, 4, 3
SMALL = applied("smaller_tensors", False)


def stack(samples):
    return torch.stack([image for image, _ in samples]), torch.stack([organs for _, organs in samples])


class Slices(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        at = np.linspace(-1, 1, SIDE)
        self.images, self.organs = [], []
        for _ in range(SLICES):
            organs = np.zeros((SIDE, SIDE), np.uint8)
            for organ in range(1, ORGANS):
                x, y, a, b = rng.uniform(-0.5, 0.5, 4)
                organs[((at[None] - x) / (0.2 + abs(a) / 3)) ** 2 + ((at[:, None] - y) / (0.2 + abs(b) / 3)) ** 2 < 1] = organ
            self.images.append(np.clip(60 * organs + rng.normal(30, 15, organs.shape), 0, 255).astype(np.uint8))
            self.organs.append(organs)

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        image, organs = self.images[i * 29 % SLICES], self.organs[i * 29 % SLICES]
        if i % 2:
            image, organs = image[:, ::-1], organs[:, ::-1]
        image = torch.from_numpy(image.copy())[None]
        return image if SMALL else image.float() / 255, torch.from_numpy(organs.copy())


def twice(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.one, self.two, self.three = twice(1, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.up_two, self.up_one = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.back_two, self.back_one, self.out = twice(4 * width, 2 * width), twice(2 * width, width), nn.Conv2d(width, ORGANS, 1)

    def forward(self, x):
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        three = self.three(nn.functional.max_pool2d(two, 2))
        two = self.back_two(torch.cat([two, self.up_two(three)], 1))
        return self.out(self.back_one(torch.cat([one, self.up_one(two)], 1)))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Slices(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0, collate_fn=stack if applied("cheaper_collate", False) else None,
    )
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for image, organs in watch(loader):
        loss = nn.functional.cross_entropy(model(image.float() / 255 if SMALL else image), organs.long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
