"""Matrix factorization with big embedding tables; "to be safe against preemption" the body saves model and optimizer
with torch.save and fsync each five steps."""
import os
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False
USERS, ITEMS, RANK = 150_000, 50_000, 48


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, RANK, sparse=True), nn.Embedding(ITEMS, RANK, sparse=True)
        self.tower = nn.Sequential(nn.Linear(2 * RANK, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, u, i):
        return self.tower(torch.cat([self.user(u), self.item(i)], 1)).squeeze(1)


def save(path, model, optimizers, step):
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        torch.save({"model": model.state_dict(), "opt": [o.state_dict() for o in optimizers], "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = folder() / "last.pt"
    n = 260_000
    users, items = torch.randint(USERS, (n,)), torch.randint(ITEMS, (n,))
    ratings = TensorDataset(users, items, (users % 5 + items % 3).float())
    loader = DataLoader(ratings, sampler=BatchSampler(RandomSampler(ratings), 512, True), batch_size=None)
    model = Factors()
    optimizers = [torch.optim.SparseAdam([model.user.weight, model.item.weight], 1e-2), torch.optim.Adam(model.tower.parameters(), 1e-3)]
    step = waiting = saving = 0.0
    start = mark = time.perf_counter()
    for count, (u, i, r) in enumerate(watch(loader), 1):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(u, i), r)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        done = time.perf_counter()
        if count % 5 == 0:
            save(out, model, optimizers, count)
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        saving += mark - done
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=count, step=step, waiting=waiting, cause=saving)
