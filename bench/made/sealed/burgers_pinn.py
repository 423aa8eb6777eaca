"""Physics-informed network for Burgers' equation: second derivatives by autograd, L-BFGS with a few inner iterations."""
import math
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


class Points:
    """Fresh points inside the domain, at the start and on the borders."""

    def __init__(self, inside=1200, edge=200):
        self.inside, self.edge, self.g = inside, edge, torch.Generator().manual_seed(0)

    def __iter__(self):
        while True:
            inner = torch.rand(self.inside, 2, generator=self.g)
            inner[:, 0] = inner[:, 0] * 2 - 1
            x0 = torch.rand(self.edge, 1, generator=self.g) * 2 - 1
            t = torch.rand(self.edge, 1, generator=self.g)
            side = torch.randint(0, 2, (self.edge, 1), generator=self.g) * 2.0 - 1
            yield inner, torch.cat([x0, torch.zeros_like(x0)], 1), torch.cat([side, t], 1)


def main():
    torch.set_num_threads(1)
    root = folder()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=8, history_size=20)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for inner, first, border in watch(Points()):
        got = time.perf_counter()

        def closure():
            opt.zero_grad()
            at = inner.clone().requires_grad_()
            u = net(at)
            du = torch.autograd.grad(u.sum(), at, create_graph=True)[0]
            uxx = torch.autograd.grad(du[:, 0].sum(), at, create_graph=True)[0][:, :1]
            residual = du[:, 1:] + u * du[:, :1] - 0.01 / math.pi * uxx
            loss = residual.square().mean() + (net(first) + torch.sin(math.pi * first[:, :1])).square().mean() + net(border).square().mean()
            loss.backward()
            return loss

        opt.step(closure)
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    torch.save(net.state_dict(), root / "burgers.pt")
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=step)


if __name__ == "__main__":
    main()
