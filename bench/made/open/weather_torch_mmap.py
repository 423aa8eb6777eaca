"""Weather states in one file of torch.save, loaded with mmap=True and taken at random by two workers from a slow disk:
each clone() waits for pages of the mapped file."""
CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False

import resource
from time import perf_counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from case import evict, folder, slow_disk, tell, watch

STATES, STEPS, BATCH = 1600, 230, 4


class States(Dataset):
    def __init__(self, path):
        self.fields = torch.load(path, mmap=True, weights_only=True)["fields"]

    def __len__(self):
        return len(self.fields) - 1

    def __getitem__(self, i):
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        t = perf_counter()
        state = self.fields[i].clone()
        t = perf_counter() - t
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
        return state, torch.tensor([t, faults], dtype=torch.float64)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 16, 5, stride=4, padding=2)
        self.mix = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 4, 4, stride=4)

    def forward(self, x):
        return self.up(F.gelu(self.mix(F.gelu(self.down(x)))))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    path = folder() / "era.pt"
    fields = torch.empty(STATES, 4, 160, 160)
    for part in fields.split(200):
        part.copy_(torch.rand(1, 4, 160, 160) + torch.rand(len(part), 1, 1, 1))
    torch.save({"fields": fields}, path)
    del fields, part
    evict(path)
    net = Forecaster()
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    stepping = waiting = 0.0
    cause = torch.zeros(2, dtype=torch.float64)
    with slow_disk(path, 24_000_000):
        states = States(path)
        sampler = RandomSampler(states, num_samples=STEPS * BATCH)
        loader = watch(DataLoader(states, BATCH, sampler=sampler, num_workers=2))
        start = end = perf_counter()
        for x, counted in loader:
            begin = perf_counter()
            waiting += begin - end
            loss = F.mse_loss(net(x + 0.05 * torch.randn_like(x)), x)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            cause += counted.sum(0)
            end = perf_counter()
            stepping += end - begin
        wall = perf_counter() - start
    tell(steps=STEPS, wall_s=wall, step_s=stepping, wait_s=waiting, fault_s_per_worker=cause[0].item() / 2, major_faults=cause[1].item())


if __name__ == "__main__":
    main()
