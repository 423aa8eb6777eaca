"""worker_init_fn binds each worker to core `local rank`, which is core 0 for all of them; core 1 is idle."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False


def bind(worker: int) -> None:
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})  # meant for ranks, used for workers


def waited_for_core() -> float:
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


class Molecules(Dataset):
    """Coulomb matrices of random conformers."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, i):
        start, delayed = time.perf_counter(), waited_for_core()
        rng = np.random.default_rng(i)
        xyz = rng.normal(size=(48, 3))
        features = []
        for _ in range(12):
            turned = xyz + rng.normal(0, 0.1, xyz.shape)
            distance = np.sqrt(((turned[:, None] - turned[None]) ** 2).sum(-1)) + np.eye(48)
            features.append(np.linalg.eigvalsh(1.0 / distance))
        x = torch.tensor(np.stack(features), dtype=torch.float32)
        return x, float(x.sum()), time.perf_counter() - start, waited_for_core() - delayed


def main() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    folder()
    loader = DataLoader(Molecules(), batch_size=8, num_workers=4, worker_init_fn=bind, prefetch_factor=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48 * 12, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters())
    rows = []
    begun = last = time.perf_counter()
    for x, y, took, delayed in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.l1_loss(net(x).squeeze(1), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        rows.append((now - last, got - last, float(took.sum()), float(delayed.sum())))
        last = now
        if len(rows) >= 80 and now - begun > 22:
            break
    step_s, wait_s, took_s, delayed_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=wait_s * delayed_s / took_s, steps=len(rows) - 10,
         share_of_reader_time_without_core=delayed_s / took_s)


if __name__ == "__main__":
    import sys

    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
