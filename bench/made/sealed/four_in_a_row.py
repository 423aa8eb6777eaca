"""Value network for four-in-a-row. Positions are labelled by an engine that talks over stdin and stdout, like UCI."""
import random
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False

ENGINE = '''
"""Searches the position (the columns that were played) to a depth; prints the score for the side to move."""
import sys

def won(b):
    for s in (1, 7, 6, 8):
        m = b & (b >> s)
        if m & (m >> 2 * s):
            return True
    return False

def search(mine, both, depth, alpha, beta):
    if won(mine ^ both):
        return -100 - depth
    if depth == 0:
        return bin(mine & 0x3E7C0000).count("1") - bin((mine ^ both) & 0x3E7C0000).count("1")
    best = -1000
    for column in (3, 2, 4, 1, 5, 0, 6):
        if both >> (7 * column + 5) & 1:
            continue
        score = -search(mine ^ both, both | (both + (1 << 7 * column)), depth - 1, -beta, -alpha)
        best = max(best, score)
        alpha = max(alpha, score)
        if alpha >= beta:
            break
    return 0 if best == -1000 else best

for line in sys.stdin:
    command, depth, played = line.split()
    mine = both = 0
    for column in map(int, played):
        mine, both = mine ^ both, both | (both + (1 << 7 * column))
    print("score", search(mine, both, int(depth), -1000, 1000), flush=True)
'''


class Positions(IterableDataset):
    def __init__(self, engine):
        self.engine = engine
        self.asking = torch.zeros(1, dtype=torch.float64).share_memory_()

    def __iter__(self):
        engine = subprocess.Popen([sys.executable, str(self.engine)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        chance = random.Random(0)
        while True:
            height, planes, played = [0] * 7, torch.zeros(2, 6, 7), []
            for turn in range(chance.randrange(4, 12)):
                column = chance.choice([c for c in range(7) if height[c] < 6])
                planes[turn % 2, height[column], column] = 1
                height[column] += 1
                played.append(column)
            began = time.perf_counter()
            engine.stdin.write(f"go 5 {''.join(map(str, played))}\n")
            engine.stdin.flush()
            score = int(engine.stdout.readline().split()[1])
            self.asking += time.perf_counter() - began
            yield planes if len(played) % 2 == 0 else planes.flip(0), max(-20, min(20, score)) / 20


class Value(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv2d(2, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.out = nn.Linear(42 * width, 1)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.body:
            x = x + torch.relu(layer(x))
        return torch.tanh(self.out(x.flatten(1))).squeeze(1)


def main():
    torch.set_num_threads(1)
    engine = folder() / "engine.py"
    engine.write_text(ENGINE)
    data = Positions(engine)
    model = Value()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for board, score in watch(DataLoader(data, batch_size=16, num_workers=1)):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(board), score.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.asking))


if __name__ == "__main__":
    main()
