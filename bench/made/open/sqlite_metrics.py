"""Graph network on molecules-like graphs; a home-made tracker commits weight and gradient norms of each layer to a
SQLite file, one durable transaction per number, in the loop's body."""
import sqlite3
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class MetricStore:
    def __init__(self, path):
        self.db, self.seconds = sqlite3.connect(path), 0.0
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL, at REAL)")
        self.db.commit()

    def log(self, step, name, value):
        t = time.perf_counter()
        self.db.execute("INSERT INTO metrics VALUES (?, ?, ?, ?)", (step, name, value, time.time()))
        self.db.commit()
        self.seconds += time.perf_counter() - t


class GraphLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.near = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x, adjacency):
        return x + torch.relu(self.own(x) + adjacency @ self.near(x))


class Net(nn.Module):
    def __init__(self, width=96, depth=4):
        super().__init__()
        self.inp, self.out = nn.Linear(9, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(depth))

    def forward(self, x, adjacency):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x, adjacency)
        return self.out(x.mean(1)).squeeze(1)


def graphs(count, batch=32, nodes=24):
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(batch, nodes, 9, generator=g)
        links = (torch.rand(batch, nodes, nodes, generator=g) < 0.12).float()
        links = ((links + links.transpose(1, 2)) > 0).float()
        yield x, links / links.sum(-1, keepdim=True).clamp(min=1), links.sum((1, 2)) / nodes


def main():
    torch.set_num_threads(1)
    store = MetricStore(folder() / "metrics.db")
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, adjacency, y in watch(graphs(2000)):
        got = time.perf_counter()
        loss = nn.functional.l1_loss(model(x, adjacency), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        values = {"loss": loss.item()}
        for name, p in model.named_parameters():
            values[f"w/{name}"], values[f"g/{name}"] = p.detach().norm().item(), p.grad.norm().item()
        done = time.perf_counter()
        for name, value in values.items():
            store.log(n, name, value)
        n += 1
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=store.seconds)


if __name__ == "__main__":
    main()
