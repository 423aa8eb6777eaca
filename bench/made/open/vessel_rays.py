"""Retina vessels: views are cast from volumes by a few workers over multiprocessing queues. The launcher keeps the job
on the first core of its slice, as the site's batch system has it for jobs of one task; the workers inherit that."""
import multiprocessing as mp
import os
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False

WORKERS, BATCH, SIDE = 5, 8, 64


def bind(rank=int(os.environ.get("SLURM_LOCALID", 0)), per_task=1):
    if os.environ.get("NO_BIND"):
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[rank * per_task : (rank + 1) * per_task])


def cast(rng):
    """A random tree of tubes, seen from one side."""
    view = np.zeros((SIDE, SIDE), np.float32)
    grid = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    branches = int(rng.integers(4, 11))
    for _ in range(branches):
        at, turn = rng.uniform(8, SIDE - 8, 2), rng.uniform(0, 2 * np.pi)
        for _ in range(40):
            at = at + 1.5 * np.array([np.cos(turn), np.sin(turn)])
            turn += rng.normal(0, 0.3)
            view += np.exp(-((grid[0] - at[0]) ** 2 + (grid[1] - at[1]) ** 2) / 6)
    return view, branches


def work(number, jobs, ready, seconds):
    rng = np.random.default_rng(number)
    began, cpu = time.perf_counter(), time.thread_time()
    while jobs.get() is not None:
        views = [cast(rng) for _ in range(BATCH)]
        ready.put((np.stack([v for v, _ in views]), [b for _, b in views]))
        with seconds.get_lock():
            seconds[2 * number], seconds[2 * number + 1] = time.perf_counter() - began, time.thread_time() - cpu


def batches(jobs, ready):
    for _ in range(3 * WORKERS):
        jobs.put(1)
    while True:
        x, y = ready.get()
        jobs.put(1)
        yield torch.from_numpy(x)[:, None], torch.tensor(y, dtype=torch.float32)


def main():
    bind()
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    jobs, ready, seconds = context.Queue(), context.Queue(), context.Array("d", 2 * WORKERS)
    workers = [context.Process(target=work, args=(k, jobs, ready, seconds), daemon=True) for k in range(WORKERS)]
    for w in workers:
        w.start()
    model = nn.Sequential(nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 5, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark, cpu = start, time.thread_time()
    for x, y in watch(batches(jobs, ready)):
        got = time.perf_counter()
        loss = nn.functional.poisson_nll_loss(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
    tell(wall=wall, loop_cpu=cpu, steps=n, step=step, waiting=waiting, workers_wall=sum(seconds[::2]), workers_cpu=sum(seconds[1::2]))
    for w in workers:
        w.terminate()


if __name__ == "__main__":
    main()
