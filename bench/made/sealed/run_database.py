"""Each step puts its metrics into a SQLite file, each value in a transaction of its own that the disk must confirm."""
import sqlite3
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class RunDatabase:
    def __init__(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS metric (step INTEGER, name TEXT, value REAL)")
        self.seconds = 0.0

    def log(self, step, values):
        start = time.perf_counter()
        for name, value in values.items():
            self.connection.execute("INSERT INTO metric VALUES (?, ?, ?)", (step, name, value))
        self.seconds += time.perf_counter() - start


def main():
    torch.set_num_threads(1)
    database = RunDatabase(folder() / "runs.db")
    x = torch.randn(6000, 40)
    loader = DataLoader(TensorDataset(x, x @ torch.randn(40, 3)), batch_size=50, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(40, 200), nn.SiLU(), nn.Linear(200, 200), nn.SiLU(), nn.Linear(200, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    watched = watch(loader)
    n, wait, step = 0, 0.0, 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or n < 80:
        last = time.perf_counter()
        for inputs, targets in watched:
            got = time.perf_counter()
            loss = nn.functional.smooth_l1_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            norms = {f"grad/{name}": parameter.grad.norm().item() for name, parameter in model.named_parameters()}
            database.log(n, {"loss": loss.item(), **norms})
            now = time.perf_counter()
            n, wait, step = n + 1, wait + got - last, step + now - last
            last = now
            if now - begin > 30:
                break
    database.connection.close()
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=database.seconds / n, steps=n)


if __name__ == "__main__":
    main()
