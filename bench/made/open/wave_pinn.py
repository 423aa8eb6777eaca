"""Physics-informed network for the wave equation: second derivatives by autograd, fresh collocation points each step."""
import math
import time

import torch
from torch import nn

from case import tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


class Field(nn.Module):
    def __init__(self, width=96, depth=4):
        super().__init__()
        sizes = [2] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x).squeeze(1)


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def residual(model, points, speed=1.0):
    points.requires_grad_(True)
    first = derivative(model(points), points)
    return derivative(first[:, 1], points)[:, 1] - speed**2 * derivative(first[:, 0], points)[:, 0]


class Points:
    """(x, t) inside, at the start and at the ends of the string."""

    def __init__(self, steps, inside=1500, edge=200):
        self.steps, self.inside, self.edge = steps, inside, edge
        self.g = torch.Generator().manual_seed(5)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            inside = torch.rand(self.inside, 2, generator=self.g)
            start = torch.rand(self.edge, 2, generator=self.g) * torch.tensor([1.0, 0.0])
            ends = torch.rand(self.edge, 2, generator=self.g)
            ends[:, 0] = ends[:, 0].round()
            yield inside, start, ends


def main():
    torch.set_num_threads(1)
    model = Field()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for inside, first, ends in watch(Points(4000)):
        got = time.perf_counter()
        wave = residual(model, inside).square().mean()
        string = (model(first) - torch.sin(math.pi * first[:, 0])).square().mean()
        loss = wave + 10 * string + 10 * model(ends).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        plan.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=step)


if __name__ == "__main__":
    main()
