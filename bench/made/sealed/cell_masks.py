"""Cell segmentation after U-Net's paper: elastic deformation of image and mask (scipy) as augmentation, no workers."""
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = True  # the network computes nearly as long

SIZE = 192


class Cells(Dataset):
    def __init__(self, root, count=48):
        rng = np.random.default_rng(0)
        y, x = np.mgrid[:SIZE, :SIZE]
        self.files, self.seconds, self.rng = [], 0.0, rng
        for i in range(count):
            mask = np.zeros((SIZE, SIZE), np.uint8)
            for _ in range(14):
                cy, cx, r = rng.integers(0, SIZE), rng.integers(0, SIZE), rng.integers(8, 22)
                mask |= ((y - cy) ** 2 + (x - cx) ** 2 < r * r).astype(np.uint8)
            image = mask * rng.uniform(0.3, 0.8, (4, 1, 1)) + rng.normal(0, 0.15, (4, SIZE, SIZE))  # four stains
            np.savez(root / f"{i:03d}.npz", image=image.astype(np.float32), mask=mask)
            self.files.append(root / f"{i:03d}.npz")

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        with np.load(self.files[i % len(self.files)]) as kept:
            image, mask = kept["image"], kept["mask"]
        began = time.perf_counter()
        shift = [gaussian_filter(self.rng.uniform(-1, 1, mask.shape), 13) * 380 for _ in range(2)]
        where = np.mgrid[:SIZE, :SIZE] + np.stack(shift)
        image = np.stack([map_coordinates(stain, where, order=3, mode="reflect") for stain in image])
        image = np.clip(image, 0, 1) ** self.rng.uniform(0.7, 1.4)
        mask = map_coordinates(mask, where, order=0, mode="reflect")
        self.seconds += time.perf_counter() - began
        return torch.from_numpy(image), torch.from_numpy(mask.astype(np.int64))


def single(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU())


def double(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=4):
        super().__init__()
        self.a, self.b, self.c = single(4, w), double(w, 2 * w), double(2 * w, 4 * w)
        self.up2, self.d = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), double(4 * w, 2 * w)
        self.up1, self.e = nn.ConvTranspose2d(2 * w, w, 2, 2), single(2 * w, w)
        self.out = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(nn.functional.max_pool2d(a, 2))
        c = self.c(nn.functional.max_pool2d(b, 2))
        d = self.d(torch.cat([self.up2(c), b], 1))
        return self.out(self.e(torch.cat([self.up1(d), a], 1)))


def main():
    torch.set_num_threads(1)
    cells = Cells(folder())
    loader = DataLoader(cells, batch_size=4, shuffle=True)
    model = UNet()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for image, mask in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(image), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=cells.seconds)


if __name__ == "__main__":
    main()
