"""Short epochs with spawned workers that are made anew in each: they import scipy, pandas and pyarrow before their first sample."""
import time

import numpy as np
import pandas as pd
import pyarrow.dataset  # noqa: F401
import scipy.optimize  # noqa: F401
import scipy.signal
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False


class Traces(Dataset):
    def __init__(self, path):
        self.path, self.table = path, None

    def __len__(self):
        return 640

    def __getitem__(self, i):
        if self.table is None:
            self.table = pd.read_csv(self.path)
        trace = self.table["v"].to_numpy()[i * 10 : i * 10 + 256]
        return torch.from_numpy(scipy.signal.detrend(trace).astype(np.float32)), i % 3


def main():
    path = folder() / "traces.csv"
    pd.DataFrame({"v": np.cumsum(np.random.default_rng(0).normal(size=8000))}).to_csv(path, index=False)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    optimizer = torch.optim.Adam(model.parameters())
    watched = watch(DataLoader(Traces(path), batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="spawn"))
    n = passes = 0
    wait = step = first = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or n < 80:
        last = time.perf_counter()
        opening = True
        for x, y in watched:
            got = time.perf_counter()
            if opening:
                first, opening = first + got - last, False
            for _ in range(5):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            now = time.perf_counter()
            n, wait, step = n + 1, wait + got - last, step + now - last
            last = now
        passes += 1
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=first / n, steps=n, passes=passes)


if __name__ == "__main__":
    main()
