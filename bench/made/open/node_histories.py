"""Graph network on a large graph by historical embeddings: the last embedding of each node is kept in a memory-mapped
array, which the evaluation of another job looks at; the step writes its nodes' rows and flushes the map."""
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False

NODES, WIDTH, PART, NEAR = 120_000, 256, 4000, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.own, self.near, self.out = nn.Linear(32, WIDTH), nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, 10)

    def forward(self, x, around):
        h = torch.relu(self.inp(x))
        return h, self.out(torch.relu(self.own(h) + self.near(around)))


class Parts:
    """Random parts of the graph: nodes, their features, their neighbours, their classes."""

    def __init__(self, steps):
        rng = np.random.default_rng(1)
        self.steps, self.rng = steps, rng
        self.links = rng.integers(0, NODES, (NODES, NEAR))
        self.x = rng.normal(size=(NODES, 32)).astype(np.float32)
        self.y = self.x[:, :10].argmax(1)

    def __iter__(self):
        for _ in range(self.steps):
            nodes = self.rng.choice(NODES, PART, replace=False)
            yield nodes, torch.from_numpy(self.x[nodes]), self.links[nodes, :2], torch.from_numpy(self.y[nodes])


def main():
    torch.set_num_threads(1)
    history = np.lib.format.open_memmap(folder() / "history.npy", "w+", np.float32, (NODES, WIDTH))
    history[:] = 0
    history.flush()
    model = Layer()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = flushing = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for nodes, x, near, y in watch(Parts(4000)):
        got = time.perf_counter()
        around = torch.from_numpy(history[near[:, 0]] + history[near[:, 1]]) / 2
        h, out = model(x, around)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        done = time.perf_counter()
        history[nodes] = h.detach().numpy()
        history.flush()
        flushing += time.perf_counter() - done
        n += 1
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=flushing)


if __name__ == "__main__":
    main()
