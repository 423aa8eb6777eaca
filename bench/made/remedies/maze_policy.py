"""A policy for mazes, learned from the planner's moves: workers draw a maze and solve it, the loop trains a small
convolutional network on what the planner did."""
import time
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1

SIDE, BATCH = 17, 18


def solve(walls):
    """Steps from each cell to the goal in the corner, breadth first."""
    away = np.full(walls.shape, -1, np.float32)
    away[-1, -1] = 0
    waiting = deque([(SIDE - 1, SIDE - 1)])
    while waiting:
        row, column = waiting.popleft()
        for r, c in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= r < SIDE and 0 <= c < SIDE and not walls[r, c] and away[r, c] < 0:
                away[r, c] = away[row, column] + 1
                waiting.append((r, c))
    return away


class Mazes(Dataset):
    def __init__(self):
        self.stored = [self.draw(i) for i in range(2000)] if applied("cheaper_data", False) else None

    def __len__(self):
        return 1000000

    def draw(self, i):
        rng = np.random.default_rng(i)
        walls = rng.random((SIDE, SIDE)) < 0.25
        walls[-1, -1] = False
        return torch.from_numpy(walls.astype(np.float32)), torch.from_numpy(solve(walls))

    def __getitem__(self, i):
        return self.draw(i) if self.stored is None else self.stored[i % 2000]


class Policy(nn.Module):
    def __init__(self, width=40, depth=4):
        super().__init__()
        self.inp = nn.Conv2d(2, width, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.mid:
            x = x + torch.relu(layer(x))
        return self.out(x)[:, 0]


def main():
    torch.set_num_threads(applied("fewer_threads", 8))
    loader = DataLoader(
        Mazes(), batch_size=BATCH, num_workers=applied("more_workers", 2), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = Policy()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    goal = torch.zeros(1, SIDE, SIDE)
    goal[0, -1, -1] = 1
    marks = []
    for walls, away in watch(loader):
        guess = model(torch.stack([walls, goal.expand_as(walls)], 1))
        reached = (away >= 0).float()
        loss = ((guess - away / 10) ** 2 * reached).sum() / reached.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
