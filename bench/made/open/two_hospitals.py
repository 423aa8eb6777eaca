"""DDP with Join on the ECGs of two hospitals: the second has a third of the patients, so that its rank runs out of
batches early in each pass and shadows the collectives until the first has finished."""
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False
PATIENTS = (768, 256)


class Hospital(Dataset):
    """Twelve leads, made once and kept in memory."""

    def __init__(self, site):
        g = torch.Generator().manual_seed(site)
        self.leads = torch.randn(PATIENTS[site], 12, 1000, generator=g)
        self.rhythm = (self.leads[:, 0].mean(1) > 0).long()

    def __len__(self):
        return len(self.rhythm)

    def __getitem__(self, i):
        return self.leads[i], self.rhythm[i]


def network():
    blocks = []
    for a, b in ((12, 32), (32, 48), (48, 64)):
        blocks += [nn.Conv1d(a, b, 9, padding=4), nn.GroupNorm(4, b), nn.ReLU(), nn.MaxPool1d(2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(network())
    opt = torch.optim.SGD(model.parameters(), 0.02)
    loader = watch(DataLoader(Hospital(rank), batch_size=16, shuffle=True))
    step = waiting = shadow = 0.0
    n = 0
    dist.barrier()
    start = time.perf_counter()
    for epoch in range(14):
        with Join([model]):
            mark = time.perf_counter()
            for ecg, rhythm in loader:
                got = time.perf_counter()
                opt.zero_grad()
                nn.functional.cross_entropy(model(ecg), rhythm).backward()
                opt.step()
                n += 1
                waiting += got - mark
                mark = time.perf_counter()
                step += mark - got
        shadow += time.perf_counter() - mark
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=shadow, cause_is="at the end of passes, for the other rank")
    dist.destroy_process_group()
