"""Vibration of bearings to spectrograms in two workers; a line meant for NUMA locality binds the trainer, and so its workers, to core 0.
They queue for that core while core 1 is idle."""
CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False

import os
import time

import numpy as np
import torch
from case import tell, watch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 270


def bind_to_numa_node(local_rank=0, cores_per_rank=1):
    cores = sorted(os.sched_getaffinity(0))
    first = local_rank * cores_per_rank
    os.sched_setaffinity(0, cores[first:first + cores_per_rank])


def delayed():
    """Seconds that this thread was ready to run and did not."""
    return int(open(f"/proc/self/task/{os.getpid()}/schedstat").read().split()[1]) / 1e9


class Bearings(Dataset):
    def __init__(self):
        self.waves = np.random.default_rng(0).standard_normal((200, 34816)).astype(np.float32)

    def __len__(self):
        return STEPS * 16

    def __getitem__(self, i):
        q, c = delayed(), time.process_time()
        wave = self.waves[i % 200]
        wave = signal.sosfiltfilt(signal.butter(4, 0.2, output="sos"), wave)
        _, _, s = signal.stft(wave, nperseg=512, noverlap=384)
        spec = np.log1p(np.abs(s)).astype(np.float32)[:128, :160]
        return spec[None], i % 5, time.process_time() - c, delayed() - q


class Net(nn.Module):
    def __init__(self, w=20):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, w, 5, 2, 2), nn.ReLU(), nn.Conv2d(w, 2 * w, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * w, 2 * w, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.c = nn.Linear(2 * w, 5)

    def forward(self, x):
        return self.c(self.f(x).flatten(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    bind_to_numa_node()
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    loader = watch(DataLoader(Bearings(), batch_size=16, num_workers=2))
    wait = step = worker_cpu = worker_delay = 0.0
    n, cpu0, delay0 = 0, time.process_time(), delayed()
    begin = t0 = time.perf_counter()
    for x, y, c, d in loader:
        t1 = time.perf_counter()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        worker_cpu, worker_delay = worker_cpu + float(c.sum()), worker_delay + float(d.sum())
        t2 = time.perf_counter()
        wait, step, n, t0 = wait + t1 - t0, step + t2 - t1, n + 1, t2
        if t2 - begin > 27:
            break
    wall = time.perf_counter() - begin
    main_cpu, main_delay = time.process_time() - cpu0, delayed() - delay0
    two_cores = max(main_cpu, (main_cpu + worker_cpu) / 2)
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=wall - two_cores, main_cpu=main_cpu, worker_cpu=worker_cpu, main_delayed=main_delay, workers_delayed=worker_delay)
