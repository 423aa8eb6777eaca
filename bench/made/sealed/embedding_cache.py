"""A cache of embeddings is larger than the memory that the job's control group allows: the rows that a worker wants must be swapped in first."""
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/memory"
RANKS = 1
BORDERLINE = False
ROWS, WIDTH = 4000, 40_960  # 160 KiB a row, 625 MiB in all


@contextmanager
def little_memory(root, limit, swap):
    """A control group of `limit` bytes, and a swap file for what does not fit."""
    base = Path("/sys/fs/cgroup/memory")
    mine = base / next(line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.split(":")[1] == "memory").strip("/")
    group, file = mine / f"cache-{os.getpid()}", root / "swapfile"
    with file.open("wb") as out:
        os.posix_fallocate(out.fileno(), 0, swap)
    file.chmod(0o600)
    subprocess.run(["mkswap", str(file)], check=True, stdout=subprocess.DEVNULL)
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "memory.swappiness").write_text("100")
        subprocess.run(["swapon", str(file)], check=True)
        yield group
    finally:
        for _ in range(100):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
        subprocess.run(["swapoff", str(file)], check=False)
        file.unlink()


class Cache(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, time.perf_counter()
        row = torch.from_numpy(self.table[i].copy())
        took = time.perf_counter() - start
        return row, took, resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults


def train(group):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    nn.functional.mse_loss(model(torch.zeros(1, WIDTH)), torch.zeros(1, 1)).backward()
    rows = []
    (group / "cgroup.procs").write_text(str(os.getpid()))
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    watched = watch(DataLoader(Cache(table), batch_size=12, shuffle=True, num_workers=1))
    begin = last = time.perf_counter()
    over = False
    while not over:
        for x, took, faults in watched:
            got = time.perf_counter()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, took.sum().item(), faults.sum().item()))
            last = now
            over = now - begin > 21 and len(rows) > 75 or now - begin > 33
            if over:
                break
    step, wait, took, faults = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=took, major_faults=faults, steps=len(rows))


def main():
    """The training runs in a process of its own, so that the group goes even if the kernel kills the training."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with little_memory(folder(), 340 << 20, 1500 << 20) as group:
        subprocess.run([sys.executable, __file__, sys.argv[1], str(group)], check=True)


if __name__ == "__main__":
    train(Path(sys.argv[2])) if len(sys.argv) > 2 else main()
