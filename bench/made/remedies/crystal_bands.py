"""Band gaps of crystals from their powder patterns. The script came from a benchmark of kernels and holds itself to one
processor, so that timings repeat."""
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1

CRYSTALS, ATOMS, ANGLES, BATCH = 400, 10, 256, 12


def pattern(places, weights, cell):
    """Intensities of the reflections up to the sixth order, each a peak at its angle."""
    orders = np.stack(np.meshgrid(*[np.arange(-4, 5)] * 3, indexing="ij"), -1).reshape(-1, 3)
    orders = orders[np.abs(orders).sum(1) > 0]
    phases = 2 * np.pi * orders @ places.T
    strength = np.abs((weights * np.exp(1j * phases)).sum(1)) ** 2
    sines = np.linalg.norm(orders / cell, axis=1) * 0.77
    seen = sines < 1
    angles = np.degrees(2 * np.arcsin(sines[seen]))
    grid = np.linspace(0, 180, ANGLES)
    return (strength[seen, None] * np.exp(-((grid - angles[:, None]) ** 2) / 2)).sum(0).astype(np.float32)


class Patterns(Dataset):
    def __init__(self, root):
        rng = np.random.default_rng(4)
        self.places = rng.random((CRYSTALS, ATOMS, 3))
        self.weights = rng.integers(5, 80, (CRYSTALS, ATOMS)).astype(float)
        self.cells = rng.uniform(3, 7, (CRYSTALS, 3))
        self.stored = None
        if applied("cheaper_data", False):
            np.save(root / "patterns.npy", np.stack([pattern(*c) for c in zip(self.places, self.weights, self.cells)]))
            self.stored = np.load(root / "patterns.npy")

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        i %= CRYSTALS
        if self.stored is None:
            found = pattern(self.places[i], self.weights[i], self.cells[i])
        else:
            found = self.stored[i]
        return torch.from_numpy(found)[None] / 1e4, torch.tensor(float(i % 7))


def main():
    allowed = sorted(os.sched_getaffinity(0))
    if not applied("unbind", False):
        os.sched_setaffinity(0, allowed[: applied("more_cores", 1)])
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Patterns(folder()), batch_size=BATCH, num_workers=applied("more_workers", 1), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = nn.Sequential(
        nn.Conv1d(1, 96, 9, 1, 4), nn.SiLU(), nn.Conv1d(96, 128, 9, 2, 4), nn.SiLU(), nn.Conv1d(128, 128, 9, 2, 4), nn.SiLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(512, 1),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for found, gap in watch(loader):
        loss = nn.functional.mse_loss(model(found)[:, 0], gap)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
