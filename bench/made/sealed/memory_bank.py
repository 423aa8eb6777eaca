"""Instance discrimination against a bank of negatives that are trained too (as in AdCo); the bank is a file (memmap),
so that a run can be resumed."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False

ROWS, WIDTH, BATCH, NEGATIVES = 40_000, 1024, 48, 2048


class Bank:
    """Features of each instance; what a step has changed is on the disk before the next one begins."""

    def __init__(self, path):
        self.rows = np.memmap(path, np.float32, "w+", shape=(ROWS, WIDTH))
        self.rows[:] = np.random.default_rng(3).standard_normal((ROWS, WIDTH), np.float32) / WIDTH**0.5
        self.rows.flush()
        self.seconds = 0.0

    def update(self, which, rows):
        began = time.perf_counter()
        self.rows[which] = rows
        self.rows.flush()
        self.seconds += time.perf_counter() - began

    def negatives(self, rng):
        which = np.sort(rng.choice(ROWS, NEGATIVES, replace=False))
        return which, torch.from_numpy(self.rows[which]).requires_grad_()


class Instances(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 14, 14, generator=g)


def main():
    torch.set_num_threads(1)
    bank = Bank(folder() / "bank.f32")
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, WIDTH))
    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    rng = np.random.default_rng(0)
    loader = watch(DataLoader(Instances(), batch_size=BATCH, shuffle=True, drop_last=True))
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for images in loader:
        got = time.perf_counter()
        features = nn.functional.normalize(model(images))
        noisy = nn.functional.normalize(model(images + 0.1 * torch.randn_like(images)))
        which, others = bank.negatives(rng)
        logits = torch.cat([(features * noisy).sum(1, keepdim=True), features @ others.T], 1) / 0.1
        loss = nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.update(which, nn.functional.normalize(others.detach() + 3 * others.grad).numpy())
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step - bank.seconds, waiting=waiting, cause=bank.seconds)


if __name__ == "__main__":
    main()
