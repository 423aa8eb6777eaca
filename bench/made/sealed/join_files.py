"""Rank 1 has a quarter of the files that rank 0 has; DDP's join lets rank 0 go on alone, and rank 1 waits for it at the end of each pass."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False


class Files(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for path in self.files:
            yield from torch.load(path)


def main():
    root = folder()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    files = [root / f"part{number}.pt" for number in range(5)]
    if rank == 0:
        for path in files:
            torch.save(torch.randn(320, 3, 64, 64), path)
    dist.barrier()
    mine = files[:4] if rank == 0 else files[4:]
    model = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watched = watch(DataLoader(Files(mine), batch_size=32))
    n = 0
    step = wait = joined = 0.0
    began = time.perf_counter()
    for _ in range(12):
        with Join([model]):
            last = time.perf_counter()
            for x in watched:
                got = time.perf_counter()
                loss = nn.functional.mse_loss(model(x), x.mean((2, 3)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                n, step, wait = n + 1, step + now - last, wait + got - last
                last = now
            ended = time.perf_counter()
        joined += time.perf_counter() - ended
    every = [None, None]
    dist.all_gather_object(every, (n, joined, time.perf_counter() - began))
    if rank == 0:
        tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=every[1][1] / every[1][0], steps=n, batches_by_rank=[e[0] for e in every], waiting_in_join_by_rank=[e[1] for e in every], seconds=every[0][2])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
