"""Sales of shops: a Dataset that filters a DataFrame and works out rolling features with pandas for each sample, in the
loop itself (num_workers=0)."""
CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

WINDOW = 120
made = 0.0  # seconds in __getitem__


def sales_table(stores=120, days=500):
    rng = np.random.default_rng(11)
    day = np.tile(np.arange(days), stores)
    name = np.repeat([f"store-{i:03d}" for i in range(stores)], days)
    level = np.repeat(rng.uniform(50, 400, stores), days)
    sales = level * (1 + 0.3 * np.sin(day * 2 * np.pi / 7)) + rng.gamma(2, 10, len(day)) + 1
    frame = pd.DataFrame({"store": name, "day": day, "weekday": day % 7, "sales": sales, "promo": rng.random(len(day)) < 0.1})
    return frame.sample(frac=1, random_state=0).reset_index(drop=True)


class StoreWindows(Dataset):
    def __init__(self, frame):
        self.frame, self.names = frame, sorted(frame["store"].unique())
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 6000

    def __getitem__(self, i):
        global made
        t = time.perf_counter()
        one = self.frame[self.frame["store"] == self.names[i % len(self.names)]].sort_values("day")
        at = int(self.rng.integers(0, len(one) - WINDOW))
        one = one.iloc[at : at + WINDOW].copy()
        target = one["sales"].iloc[-1] / 400
        one["week"] = one["sales"].rolling(7, min_periods=1).mean()
        one["month"] = one["sales"].rolling(28, min_periods=1).median()
        one["change"] = one["sales"].pct_change().fillna(0).clip(-3, 3)
        one["smooth"] = one["sales"].ewm(span=5).mean()
        one["lag"] = one["sales"].shift(7).bfill()
        one = pd.get_dummies(one, columns=["weekday"], dtype=float).drop(columns=["store", "day"])
        x = torch.from_numpy(one.to_numpy(dtype="float32")[:-1] / 400)
        made += time.perf_counter() - t
        return x, torch.tensor(target, dtype=torch.float32)


class Forecast(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.rnn = nn.GRU(inputs, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])[:, 0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dataset = StoreWindows(sales_table())
    model = Forecast(dataset[0][0].shape[1])
    made = 0.0
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    wait = work = 0.0
    steps, t_start = 0, time.perf_counter()
    t_last = t_start
    for x, y in watch(DataLoader(dataset, batch_size=12, shuffle=True)):
        t_got = time.perf_counter()
        wait += t_got - t_last
        loss = nn.functional.l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
        t_last = time.perf_counter()
        work += t_last - t_got
        if steps >= 100 and t_last - t_start > 25:
            break
    tell(steps=steps, wall_s=time.perf_counter() - t_start, step_s=work, wait_s=wait, pandas_s=made)
