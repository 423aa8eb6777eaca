"""2-D segmentation of CT: the volumes lie on disk as .npy, a sample is one axial slice of a volume picked at random.
The node is shared, and its users are asked to leave no files in the page cache."""
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch
from t_timers import Timers

CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False

VOLUMES, DEPTH, SIDE = 28, 64, 192


class AxialSlices(Dataset):
    def __init__(self, root):
        self.paths = sorted(root.glob("case_*.npy"))
        self.timers = None

    def __len__(self):
        return len(self.paths) * DEPTH

    def __getitem__(self, i):
        if self.timers is None:
            self.timers = Timers()
        volume, z = divmod(i, DEPTH)
        with self.timers.part("volume"):
            with open(self.paths[volume], "rb") as f:
                scan = np.load(f)
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        image = torch.from_numpy(scan[z].astype(np.float32)) / 1000
        self.timers.sample()
        return image[None], (image > 0.4).float()[None]


def main():
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(7)
    for v in range(VOLUMES):
        np.save(root / f"case_{v:03d}.npy", rng.integers(-1000, 1000, (DEPTH, SIDE, SIDE), dtype=np.int16))
    evict(*root.glob("case_*.npy"))
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 16, 3, 1, 1), nn.PixelShuffle(4),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    model(torch.zeros(1, 1, SIDE, SIDE)).mean().backward()          # whatever is imported late
    opt.step()
    step = waiting = 0.0
    n = 0
    with slow_disk(root, 60_000_000):
        loader = DataLoader(AxialSlices(root), batch_size=4, shuffle=True, num_workers=2, drop_last=True)
        start = mark = time.perf_counter()
        for image, mask in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(image), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
