"""River levels: an encoder and a decoder of GRU cells unrolled in Python with scheduled sampling, read from a small Parquet table.
The loop computes; its data are in memory after a moment."""
CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from case import folder, tell, watch
from torch import nn

STATIONS, HOURS, PAST, AHEAD = 24, 6000, 96, 36


def write(path):
    rng = np.random.default_rng(0)
    levels = np.cumsum(rng.standard_normal((HOURS, STATIONS), dtype=np.float32) * 0.05, 0)
    pq.write_table(pa.table({f"gauge_{i}": levels[:, i] for i in range(STATIONS)}), path, row_group_size=1000)


class Windows:
    def __init__(self, path, batch, steps):
        table = pq.read_table(path)
        self.x = np.stack([c.to_numpy() for c in table.columns], 1)
        self.batch, self.steps = batch, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        rng = np.random.default_rng(1)
        for _ in range(self.steps):
            at = rng.integers(0, HOURS - PAST - AHEAD, self.batch)
            w = self.x[at[:, None] + np.arange(PAST + AHEAD)]
            yield torch.from_numpy(w[:, :PAST]), torch.from_numpy(w[:, PAST:])


class Forecaster(nn.Module):
    def __init__(self, dim=160):
        super().__init__()
        self.enc, self.dec, self.out = nn.GRUCell(STATIONS, dim), nn.GRUCell(STATIONS, dim), nn.Linear(dim, STATIONS)
        self.dim = dim

    def forward(self, past, future, forcing):
        h = past.new_zeros(len(past), self.dim)
        for t in range(past.shape[1]):
            h = self.enc(past[:, t], h)
        last, outs = past[:, -1], []
        for t in range(future.shape[1]):
            h = self.dec(last, h)
            y = last + self.out(h)
            outs.append(y)
            last = future[:, t] if torch.rand(()) < forcing else y
        return torch.stack(outs, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = folder() / "levels.parquet"
    write(path)
    net = Forecaster()
    opt = torch.optim.Adam(net.parameters(), 5e-4)
    wait = step = 0.0
    n = 0
    begin = t0 = time.perf_counter()
    for past, future in watch(Windows(path, 48, 400)):
        t1 = time.perf_counter()
        loss = (net(past, future, max(0.0, 1 - n / 200)) - future).square().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        t2 = time.perf_counter()
        wait, step, n, t0 = wait + t1 - t0, step + t2 - t1, n + 1, t2
        if t2 - begin > 27:
            break
    tell(steps=n, wall=time.perf_counter() - begin, step=step, waiting=wait, cause=step)
