"""Fronts of glaciers in radar: speckle is filtered and slopes are taken in two readers, each of which is given its core as our old node wants it:
two readers a core."""
import os
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, sobel, uniform_filter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1

SCENES, SIDE, BATCH = 40, 160, 6
FILTERED = applied("cheaper_data", False)
SMALL = applied("smaller_tensors", False)
CORES = sorted(os.sched_getaffinity(0))


def given_its_core(number):
    if applied("unbind", False):
        return
    cores = applied("more_cores", 1)
    if cores > 1:
        os.sched_setaffinity(0, set(CORES[:cores]))
    else:
        os.sched_setaffinity(0, {CORES[number // 2 % len(CORES)]})


def filtered(scene):
    mean, square = uniform_filter(scene, 7), uniform_filter(scene**2, 7)
    weight = (square - mean**2) / (square - mean**2 + 0.3)
    smooth = mean + weight * (scene - mean)
    return np.stack([smooth, np.hypot(sobel(smooth, 0), sobel(smooth, 1)), gaussian_filter(smooth, 4)]).astype(np.float16 if SMALL else np.float32)


class Scenes(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        at = np.arange(SIDE)
        self.fronts = [at[None] > 80 + 20 * np.sin(at / 25 + k)[:, None] for k in range(SCENES)]
        self.scenes = [(rng.gamma(4, 0.25, (SIDE, SIDE)) * (1 + front)).astype(np.float32) for front in self.fronts]
        self.ready = [filtered(scene) for scene in self.scenes] if FILTERED else None

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        k = i * 17 % SCENES
        layers = self.ready[k] if FILTERED else filtered(self.scenes[k])
        return torch.from_numpy(layers), torch.from_numpy(self.fronts[k].astype(np.uint8))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 2)
    loader = DataLoader(
        Scenes(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0, worker_init_fn=given_its_core,
    )
    model = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.PixelShuffle(4))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for layers, front in watch(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(layers.float())[:, 0], front.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
