"""The job runs under a quota of half a core, as in a small container; its workers are stopped most of the time."""

import gzip
import os
import pathlib
import time
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False

CPU = pathlib.Path("/sys/fs/cgroup/cpu")


@contextmanager
def quota(cores: float):
    own = next(line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup") if line.split(":")[1] == "cpu")
    group = CPU / f"container-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100000)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (CPU / own.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            try:
                for pid in (group / "cgroup.procs").read_text().split():
                    (CPU / own.lstrip("/") / "cgroup.procs").write_text(pid)
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def throttled(group) -> float:
    """Seconds that this group's threads were stopped, and how many periods."""
    return int((group / "cpu.stat").read_text().split("throttled_time ")[1].split()[0]) / 1e9


def delay() -> float:
    return int(open("/proc/thread-self/schedstat").read().split()[1]) / 1e9


class Spectra(Dataset):
    def __init__(self, root) -> None:
        self.files = sorted(root.glob("*.gz"))

    def __len__(self) -> int:
        return 6 * 75

    def __getitem__(self, i):
        before, start = delay(), time.perf_counter()
        with gzip.open(self.files[i % len(self.files)]) as file:
            signal = np.frombuffer(file.read(), dtype=np.float32)
        power = np.abs(np.fft.rfft(signal.reshape(64, -1), axis=1))[:, :128]
        x = torch.from_numpy(np.log1p(power).astype(np.float32))
        return x, i % 3, time.perf_counter() - start, delay() - before


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(2)
    for i in range(40):
        signal = np.round(rng.normal(0, 1, 64 * 1024), 2).astype(np.float32)
        (root / f"{i:02d}.gz").write_bytes(gzip.compress(signal.tobytes(), 4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 128, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = []
    with quota(0.4) as group:
        stopped = throttled(group)
        loader = DataLoader(Spectra(root), batch_size=12, num_workers=3)
        watched = watch(loader)
        begun = time.perf_counter()
        while len(rows) < 75 or time.perf_counter() - begun < 22:
            t = time.perf_counter()
            for x, y, took, waited in watched:
                got = time.perf_counter()
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                end = time.perf_counter()
                rows.append((end - t, got - t, float(took.sum()), float(waited.sum())))
                t = end
        stopped = throttled(group) - stopped
        del loader, watched
    step_s, wait_s, work_s, delayed_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=wait_s * delayed_s / work_s, steps=len(rows) - 10,
         share_of_reader_time_without_core=delayed_s / work_s, throttled_s=stopped)


if __name__ == "__main__":
    main()
