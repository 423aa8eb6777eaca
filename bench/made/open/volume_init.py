"""Segmentation of small volumes, twenty batches a pass. The workers are not persistent, and worker_init_fn imports MONAI
and builds the transforms anew in each pass: the first batch of a pass is late."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False
CASES, SIDE = 80, 32


class Volumes(Dataset):
    def __init__(self, where):
        self.where, self.transform, self.opened = where, None, 0.0

    def __len__(self):
        return CASES

    def __getitem__(self, i):
        with np.load(self.where / f"case{i:03d}.npz") as z:
            image, label = self.transform(z["image"]), torch.from_numpy(z["label"]).float()
        opened, self.opened = self.opened, 0.0
        return torch.as_tensor(np.asarray(image)), label, opened


def setup(worker_id):
    t = time.perf_counter()
    import monai.transforms as mt  # kept out of the main process: it is slow to import

    dataset = get_worker_info().dataset
    dataset.transform = mt.Compose([mt.ScaleIntensity(), mt.RandFlip(0.5, 0), mt.RandGaussianNoise(0.2)])
    dataset.opened = time.perf_counter() - t


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose3d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose3d(8, 1, 2, 2))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    torch.set_num_threads(1)
    where = folder()
    rng = np.random.default_rng(2)
    for i in range(CASES):
        image = rng.standard_normal((1, SIDE, SIDE, SIDE), dtype=np.float32)
        np.savez(where / f"case{i:03d}.npz", image=image, label=image > 0.5)
    model = UNetish()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    loader = watch(DataLoader(Volumes(where), batch_size=4, shuffle=True, num_workers=2, worker_init_fn=setup))
    first, later, computing, opened = [], [], 0.0, 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < 21:
        mark = time.perf_counter()
        for number, (image, label, took) in enumerate(loader):
            got = time.perf_counter()
            (later if number else first).append(got - mark)
            loss = nn.functional.binary_cross_entropy_with_logits(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            opened += took.sum().item() / 2
            mark = time.perf_counter()
            computing += mark - got
    tell(wall=time.perf_counter() - start, steps=len(first) + len(later), passes=len(first), step=computing,
         waiting=sum(first) + sum(later), cause=sum(first), opened_per_worker=opened)


if __name__ == "__main__":
    main()
