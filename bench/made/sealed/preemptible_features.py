"""Instance discrimination: the features of all images lie in a memory bank that is a mapped file; it is flushed after
each step, so that a job that is preempted goes on where it was."""
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = True
IMAGES, WIDTH, BATCH = 40_000, 1024, 768


class Bank:
    def __init__(self, path):
        self.rows = np.lib.format.open_memmap(path, "w+", np.float32, (IMAGES, WIDTH))
        self.seconds = 0.0

    def take(self, index):
        return torch.from_numpy(self.rows[index])

    def put(self, index, features):
        t = time.perf_counter()
        self.rows[index] = features.numpy()
        self.rows.flush()
        self.seconds += time.perf_counter() - t


def batches():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(512, 64, generator=g)
    while True:
        index = torch.randperm(IMAGES, generator=g)[:BATCH].sort().values
        yield index, base[index % 512] + 0.3 * torch.randn(BATCH, 64, generator=g)


def main():
    torch.set_num_threads(1)
    bank = Bank(folder() / "bank.npy")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), 0.03)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for index, x in watch(batches()):
        got = time.perf_counter()
        old = bank.take(index.numpy())
        new = nn.functional.normalize(model(x), dim=1)
        positive = (new * old).sum(1)
        negative = new @ old[:16].t()
        loss = (torch.logsumexp(torch.cat([positive.unsqueeze(1), negative], 1) / 0.1, 1) - positive / 0.1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = time.perf_counter()
        bank.put(index.numpy(), 0.5 * old + 0.5 * new.detach())
        n += 1
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        if mark - start > 25:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=bank.seconds)


if __name__ == "__main__":
    main()
