"""EEG windows in one float32 numpy.memmap, taken in shuffled order by two DataLoader workers.
The workers fault the pages in from a slow disk while they copy a window."""
CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False

import time

import numpy as np
import torch
import torch.nn.functional as F
from case import evict, folder, slow_disk, tell, watch
from torch.utils.data import DataLoader, Dataset

WINDOWS, CHANNELS, SAMPLES = 480, 64, 2048


class Windows(Dataset):
    def __init__(self, path):
        self.path, self.x = path, None

    def __len__(self):
        return WINDOWS

    def __getitem__(self, i):
        if self.x is None:
            self.x = np.memmap(self.path, np.float32, "r", shape=(WINDOWS, CHANNELS, SAMPLES))
        a = time.perf_counter()
        w = np.array(self.x[i])
        b = time.perf_counter()
        w = w[:, ::4] - w[:, :64].mean(1, keepdims=True)
        c = time.perf_counter()
        return {"x": w, "y": i % 4, "fault": b - a, "all": c - a}


class EEGNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.time = torch.nn.Conv1d(CHANNELS, 32, 25, stride=4)
        self.deep = torch.nn.Conv1d(32, 64, 9, stride=2)
        self.out = torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.out(F.elu(self.deep(F.elu(self.time(x)))).mean(-1))


def write(path):
    rng = np.random.default_rng(11)
    with open(path, "wb") as f:
        for _ in range(WINDOWS):
            f.write(rng.standard_normal((CHANNELS, SAMPLES), dtype=np.float32).tobytes())
    evict(path)


def train(loader):
    net = EEGNet()
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    sums = {"step": 0.0, "waiting": 0.0, "fault": 0.0, "worker": 0.0, "steps": 0}
    t0 = time.perf_counter()
    for batch in loader:
        t1 = time.perf_counter()
        sums["waiting"] += t1 - t0
        opt.zero_grad()
        F.cross_entropy(net(batch["x"]), batch["y"]).backward()
        opt.step()
        sums["fault"] += batch["fault"].sum().item()
        sums["worker"] += batch["all"].sum().item()
        sums["steps"] += 1
        t0 = time.perf_counter()
        sums["step"] += t0 - t1
    return sums


if __name__ == "__main__":
    torch.set_num_threads(1)
    file = folder() / "session.f32"
    write(file)
    with slow_disk(folder(), 10_000_000):
        s = train(watch(DataLoader(Windows(file), 4, shuffle=True, num_workers=2, prefetch_factor=2)))
    tell(wall=s["step"] + s["waiting"], cause=s["waiting"] * s["fault"] / s["worker"], **s)
