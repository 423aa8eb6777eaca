"""DDP on a table of loans; the first rank keeps a report of the gradients and weights of each layer after each step."""
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False

STEPS = 190


class Report:
    def __init__(self):
        self.last = {}

    def look(self, model):
        for name, p in model.named_parameters():
            for kind, values in (("w", p.detach()), ("g", p.grad)):
                flat = values.numpy().ravel()
                low, high = np.quantile(flat, (0.001, 0.999))
                self.last[f"{kind}/{name}"] = np.histogram(flat, 80, (low, high))[0], low, high


def main():
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60_000, 64, generator=g)
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).float())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    net = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    report = Report()
    waiting = reporting = 0.0
    cpu = time.thread_time()
    n, start = 0, time.perf_counter()
    mark = start
    for rows, good in watch(loader):
        waiting += time.perf_counter() - mark
        loss = nn.functional.binary_cross_entropy_with_logits(model(rows).squeeze(1), good)
        loss.backward()
        opt.step()
        if rank == 0:
            began = time.perf_counter()
            report.look(net)
            reporting += time.perf_counter() - began
        opt.zero_grad()
        n += 1
        mark = time.perf_counter()
        if n == STEPS:
            break
    wall = time.perf_counter() - start
    used = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(used, torch.tensor([time.thread_time() - cpu], dtype=torch.float64))
    if rank == 0:
        own = [float(part) for part in used]
        tell(wall=wall, steps=n, step=wall - waiting - reporting, waiting=waiting, cause=reporting, cpu_by_rank=own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
