"""A worker unpacks arrays into a scratch folder under a tight memory limit: each write waits for the kernel to reclaim pages."""

import itertools
import os
import pathlib
import time
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import evict, folder, tell, watch

CAUSE = "waiting/memory"
RANKS = 1
BORDERLINE = True  # a second way to see it: the kernel writes dirty pages before it can reclaim them; and a quarter is plain copying

MEMORY = pathlib.Path("/sys/fs/cgroup/memory")
LIMIT = 60 << 20
FILES, FREE = 24, 48  # files of the ring; samples before the limit holds


@contextmanager
def limited(limit: int):
    """A control group for the worker; it joins by itself."""
    group = MEMORY / f"case-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield group
    finally:
        for _ in range(200):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def stalled() -> float:
    """Seconds in which some thread of this machine was stalled on memory."""
    line = open("/proc/pressure/memory").readline()
    return int(line.split("total=")[1]) / 1e6


class Unpacked(IterableDataset):
    """Arrays are unpacked to the scratch folder, then mapped from there, as some video readers do."""

    def __init__(self, root, group) -> None:
        self.root, self.group = root, group

    def __iter__(self):
        packed = np.random.default_rng(0).integers(0, 255, 8 << 20, dtype=np.uint8)
        free = []
        for k in itertools.count():
            if k == FREE:  # from now on all pages are the group's
                evict(*(self.root / f"scratch-{i}.bin" for i in range(FILES)))
                (self.group / "cgroup.procs").write_text(str(os.getpid()))
            start = time.perf_counter()
            with open(self.root / f"scratch-{k % FILES}.bin", "r+b") as file:
                file.write(packed)
            took = time.perf_counter() - start
            if FILES <= k < FREE:
                free.append(took)
            yield torch.from_numpy(packed[: 64 * 1024].astype(np.float32)), took, float(np.median(free or [0.0]))


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    model = nn.Sequential(nn.Linear(65536, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for k in range(FILES):
        with open(root / f"scratch-{k}.bin", "wb") as file:
            file.write(bytes(8 << 20))
            file.flush()
            os.fsync(file.fileno())
    rows = []
    with limited(LIMIT) as group:
        pressure = stalled()
        loader = DataLoader(Unpacked(root, group), batch_size=12, num_workers=1)
        feed = iter(watch(loader))
        begun = last = time.perf_counter()
        for x, took, free in feed:
            got = time.perf_counter()
            loss = model(x / 255).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, float(took.sum()), float(free[-1])))
            last = now
            if len(rows) >= 75 and now - begun > 23:
                break
        pressure = stalled() - pressure
        failed = int((group / "memory.failcnt").read_text())
        del feed, loader
    step_s, wait_s, write_s, free_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=write_s - 12 * free_s, steps=len(rows) - 10,
         write_without_limit_s=12 * free_s, memory_stall_s=pressure, failcnt=failed)


if __name__ == "__main__":
    main()
