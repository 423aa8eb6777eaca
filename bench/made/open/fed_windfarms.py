"""Federated averaging over two wind farms: each rank trains alone on its own turbines and the weights are averaged after each round; the
small farm has a quarter of the batches and waits for the large one."""

import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False
TURBINES, ROUNDS = {0: 96, 1: 24}, 22


class Scada(Dataset):
    """Windows of ten-minute values of a farm's turbines out of its own .npy file."""

    def __init__(self, path, length=144):
        self.values, self.length = np.load(path), length
        self.starts = [(turbine, start) for turbine in range(len(self.values)) for start in range(0, self.values.shape[2] - length - 6, 96)]

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, number):
        turbine, start = self.starts[number]
        window = self.values[turbine, :, start : start + self.length]
        power = self.values[turbine, 0, start + self.length : start + self.length + 6]
        return torch.from_numpy(window), torch.from_numpy(power)


class Dilated(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Conv1d(5, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**level, dilation=2**level) for level in range(5))
        self.out = nn.Linear(width, 6)

    def forward(self, window):
        hidden = self.first(window)
        for block in self.blocks:
            hidden = hidden + torch.relu(block(hidden))
        return self.out(hidden[..., -1])


def average(model, weight):
    """Weights of all farms, by their numbers of windows."""
    total = torch.tensor([float(weight)])
    dist.all_reduce(total)
    for parameter in model.parameters():
        parameter.data.mul_(weight / total.item())
        dist.all_reduce(parameter.data)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    random = np.random.default_rng(rank)
    wind = random.gamma(2.0, 4.0, (TURBINES[rank], 1, 1400)).astype(np.float32)
    path = folder() / f"farm{rank}.npy"
    np.save(path, np.concatenate([np.clip(wind**3 / 2000, 0, 1), wind / 10, random.standard_normal((TURBINES[rank], 3, 1400)).astype(np.float32)], 1))
    farm = Scada(path)
    loader = watch(DataLoader(farm, batch_size=32, shuffle=True, drop_last=True))
    model = Dilated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    steps, waited, computing, averaging = 0, 0.0, 0.0, 0.0
    dist.barrier()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        asked = time.perf_counter()
        for window, power in loader:
            got = time.perf_counter()
            loss = nn.functional.l1_loss(model(window), power)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            waited, asked, computing = waited + got - asked, time.perf_counter(), computing + time.perf_counter() - got
        ended = time.perf_counter()
        average(model, len(farm))
        averaging += time.perf_counter() - ended
    wall = time.perf_counter() - began
    ranks = [None, None]
    dist.all_gather_object(ranks, {"steps": steps, "wall": wall, "step": computing / steps, "loader": waited / steps, "averaging_all": averaging, "share": averaging / wall})
    if rank == 0:
        tell(rank0=ranks[0], rank1=ranks[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
