"""Two ranks share texts by length: rank 1 has the long ones, so its step takes several times as long, and rank 0 waits for it in the all-reduce."""
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False


class Texts(Dataset):
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.randint(1, 500, (self.lengths[i],))


def pad(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(500, 64), nn.LSTM(64, 96, batch_first=True), nn.Linear(96, 500)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def main():
    folder()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(0)
    lengths = sorted(min(400, int(rng.lognormvariate(4.0, 0.9)) + 8) for _ in range(9600))
    half = len(lengths) // 2
    mine = lengths[rank * half : (rank + 1) * half]
    torch.manual_seed(rank)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Texts(mine), batch_size=16, shuffle=True, collate_fn=pad, drop_last=True)
    rows = []
    last = time.perf_counter()
    for x in watch(loader):
        got = time.perf_counter()
        with model.no_sync():
            loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
            loss.backward()
        computed = time.perf_counter()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        exchanged = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        rows.append((now - last, got - last, computed - got, exchanged - computed))
        last = now
    every = [None, None]
    dist.all_gather_object(every, torch.tensor(rows[10:]).mean(0).tolist())
    if rank == 0:
        tell(step_s=every[0][0], waiting_for_input_s=every[0][1], cause_s=every[0][3] - every[1][3], computing_by_rank=[r[2] for r in every], exchange_by_rank=[r[3] for r in every], steps=len(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
