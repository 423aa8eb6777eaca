"""Anomaly scores for machines: windows of sensor readings of different lengths, padded to a batch by a collate function
that hands a list of arrays to torch.tensor."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch
from t_timers import Timers

CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False

SENSORS = 24


class Windows(Dataset):
    def __init__(self, count=3000):
        rng = np.random.default_rng(3)
        self.signal = rng.normal(size=(60_000, SENSORS)).cumsum(0).astype(np.float32) / 50
        self.starts = rng.integers(0, 59_000, count)
        self.lengths = rng.integers(160, 320, count)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        window = self.signal[self.starts[i] : self.starts[i] + self.lengths[i]]
        return window, float(window[-1].mean() - window[0].mean())


class Pad:
    """Batches of windows: padded at the end, with a mask."""

    def __init__(self):
        self.timers = Timers()

    def __call__(self, samples):
        with self.timers.part("batch"):
            longest = max(len(w) for w, _ in samples)
            rows = []
            for window, _ in samples:
                rows.append([r for r in window] + [np.zeros(SENSORS, np.float32)] * (longest - len(window)))
            x = torch.tensor(rows)
            mask = torch.tensor([[k < len(w) for k in range(longest)] for w, _ in samples])
            y = torch.tensor([t for _, t in samples])
        for _ in samples:
            self.timers.sample()
        return x, mask, y


class Scorer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp, self.conv, self.out = nn.Linear(SENSORS, width), nn.Conv1d(width, width, 8, 8), nn.Linear(width, 1)

    def forward(self, x, mask):
        x = self.inp(x) * mask[..., None]
        return self.out(torch.relu(self.conv(x.transpose(1, 2))).mean(2)).squeeze(1)


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Windows(), batch_size=40, shuffle=True, num_workers=1, collate_fn=Pad(), persistent_workers=True)
    model = Scorer()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for x, mask, y in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.smooth_l1_loss(model(x, mask), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
