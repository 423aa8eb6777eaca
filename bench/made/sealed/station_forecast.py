"""Forecasts for weather stations. h5py is not safe to fork, so the workers are spawned; each opens the stations anew."""
import time

import h5py
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False

HOURS, STATIONS = 20_000, 24


def measure(root):
    rng = np.random.default_rng(6)
    hours = np.arange(HOURS)
    with h5py.File(root / "stations.h5", "w") as out:
        for s in range(STATIONS):
            values = np.stack([np.sin(2 * np.pi * (hours / 24 + s / 9 + k / 5)) + rng.normal(0, 0.3, HOURS) for k in range(6)], 1)
            out.create_dataset(f"s{s:02d}", data=values.astype(np.float32))
    frame = pd.DataFrame({"station": [f"s{s:02d}" for s in range(STATIONS)], "height": rng.integers(0, 2500, STATIONS)})
    frame.to_csv(root / "stations.csv", index=False)


class Stations(Dataset):
    def __init__(self, root, windows=480):
        self.root, self.windows, self.file = root, windows, None

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.root / "stations.h5")
            self.about = pd.read_csv(self.root / "stations.csv")
        row = self.about.iloc[i % len(self.about)]
        at = int(np.random.randint(0, HOURS - 192))
        window = torch.from_numpy(self.file[row["station"]][at : at + 192])
        return window[:168], window[168:, 0] + float(row["height"]) / 1e4


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 48, batch_first=True), nn.Linear(48, 24)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def main():
    torch.set_num_threads(1)
    root = folder()
    measure(root)
    loader = watch(DataLoader(Stations(root), batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="spawn"))
    model = Forecast()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = first = 0.0
    n = epoch = 0
    start = mark = time.perf_counter()
    while mark - start < 21:
        for i, (past, future) in enumerate(loader):
            got = time.perf_counter()
            loss = nn.functional.l1_loss(model(past), future)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            first += (got - mark) * (i == 0)
            mark = time.perf_counter()
            step += mark - got
        epoch += 1
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=first, passes=epoch)


if __name__ == "__main__":
    main()
