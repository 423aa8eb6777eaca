"""Two ranks on CPU with gloo; gradients are averaged by the loop of the tutorial, one all_reduce for each parameter of
a deep and narrow network (as for the reconstruction of spectra)."""
import time

import torch
import torch.distributed as dist
from torch import nn

from case import tell, watch

CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = False


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def average_gradients(model):
    size = float(dist.get_world_size())
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= size


def spectra(rank, count, batch=16, width=96):
    g = torch.Generator().manual_seed(rank)
    lines = torch.arange(width).float()
    for _ in range(count):
        centre = torch.rand(batch, 4, 1, generator=g) * width
        clean = torch.exp(-((lines - centre) ** 2) / 8).sum(1)
        yield clean + 0.2 * torch.randn(batch, width, generator=g), clean


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(96) for _ in range(24)))
    opt = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    step = waiting = exchange = 0.0
    n, over = 0, torch.zeros(1)
    start = mark = time.perf_counter()
    for x, y in watch(spectra(rank, 20000)):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        began = time.perf_counter()
        average_gradients(model)
        if n % 5 == 0:                                  # the first rank says when it is over
            over[0] = time.perf_counter() - start > 24
            dist.broadcast(over, 0)
        exchange += time.perf_counter() - began
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if over[0]:
            break
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=exchange)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
