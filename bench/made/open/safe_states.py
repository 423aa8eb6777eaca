"""Recommender that has to survive being preempted at any time: every second step the whole state goes to a new file,
which is synced and then renamed over the last one."""
import os
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class Factors(nn.Module):
    def __init__(self, users=90_000, items=30_000, width=64):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width, sparse=True), nn.Embedding(items, width, sparse=True)
        self.head = nn.Sequential(nn.Linear(3 * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, u, i):
        u, i = self.users(u), self.items(i)
        return self.head(torch.cat([u, i, u * i], 1)).squeeze(1)


class Keeper:
    def __init__(self, root):
        self.root, self.seconds = root, 0.0

    def keep(self, state):
        t = time.perf_counter()
        new = self.root / "last.pt.new"
        with open(new, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, self.root / "last.pt")
        where = os.open(self.root, os.O_RDONLY)
        os.fsync(where)
        os.close(where)
        self.seconds += time.perf_counter() - t


def clicks(model, steps, batch=2048):
    g = torch.Generator().manual_seed(0)
    for _ in range(steps):
        u = torch.randint(model.users.num_embeddings, (batch,), generator=g)
        i = torch.randint(model.items.num_embeddings, (batch,), generator=g)
        yield u, i, ((u * 7 + i * 3) % 5 < 2).float()


def main():
    torch.set_num_threads(1)
    model = Factors()
    tables = torch.optim.SparseAdam([model.users.weight, model.items.weight], 1e-3)
    head = torch.optim.Adam(model.head.parameters(), 1e-3)
    keeper = Keeper(folder())
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for u, i, y in watch(clicks(model, 4000)):
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), y)
        tables.zero_grad()
        head.zero_grad()
        loss.backward()
        tables.step()
        head.step()
        n += 1
        done = time.perf_counter()
        if n % 2 == 0:
            keeper.keep({"model": model.state_dict(), "tables": tables.state_dict(), "head": head.state_dict(), "step": n})
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=keeper.seconds)


if __name__ == "__main__":
    main()
