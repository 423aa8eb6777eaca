"""Song recommendation, two ranks: sparse updates of large tables, and PyTorch's model averager after each step."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from case import folder, tell, watch

CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = False

LISTENERS, SONGS, STEPS = 60_000, 120_000, 200


class Plays:
    """Pairs of listener and song, and whether it was played to the end."""

    def __init__(self, rank, batch=256):
        self.g, self.batch = torch.Generator().manual_seed(rank), batch

    def __iter__(self):
        while True:
            who = torch.randint(LISTENERS, (self.batch,), generator=self.g)
            what = torch.randint(SONGS, (self.batch,), generator=self.g)
            yield who, what, ((who * 7 + what) % 5 < 2).float()


class Factors(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.who, self.what = nn.Embedding(LISTENERS, width, sparse=True), nn.Embedding(SONGS, width, sparse=True)
        self.deep = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, who, what):
        a, b = self.who(who), self.what(what)
        return (a * b).sum(1) + self.deep(torch.cat([a, b], 1)).squeeze(1)


def main():
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Factors()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    averager = PeriodicModelAverager(period=1, warmup_steps=0)
    dist.barrier()
    watched = watch(Plays(rank))
    step = waiting = averaging = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for who, what, played in watched:
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(who, what), played)
        opt.zero_grad()
        loss.backward()
        opt.step()
        done = time.perf_counter()
        if hasattr(watched, "mark"):
            watched.mark("optimizer")
        averager.average_parameters(model.parameters())
        if hasattr(watched, "mark"):
            watched.mark("communication")
        n += 1
        waiting, step = waiting + got - mark, step + done - got
        mark = time.perf_counter()
        averaging += mark - done
        if n == STEPS:
            break
    wall = time.perf_counter() - start
    if rank == 0:
        tell(wall=wall, steps=n, step=step, waiting=waiting, cause=averaging)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
