"""A pod with a CPU quota of 0.3 cores: two workers that decode are stopped by the kernel most of each 100 ms."""
import io
import os
import random
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False


@contextmanager
def quota(cores):
    root = Path("/sys/fs/cgroup/cpu")
    mine = next(line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if "cpu" in line.split(":")[1].split(","))
    group = root / mine.strip("/") / f"pod-{os.getpid()}"
    group.mkdir()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (root / mine.strip("/") / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(50):
            for pid in (group / "cgroup.procs").read_text().split():
                (root / mine.strip("/") / "cgroup.procs").write_text(pid)
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


class Thumbnails(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        wall, cpu = time.perf_counter(), time.thread_time()
        image = Image.open(io.BytesIO(self.paths[i % len(self.paths)].read_bytes()))
        image.draft("RGB", (128, 128))
        image = image.convert("RGB").resize((64, 64))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        cpu = time.thread_time() - cpu
        return x, i % 10, cpu, time.perf_counter() - wall - cpu


def main():
    root = folder()
    paths = []
    for path in sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))[:80]:
        paths.append(root / path.name)
        paths[-1].write_bytes(path.read_bytes())
    for path in paths:
        path.read_bytes()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model(torch.zeros(1, 3, 64, 64)).sum().backward()
    rows = []
    with quota(0.3):
        loader = DataLoader(Thumbnails(paths), batch_size=16, shuffle=True, num_workers=2)
        begin = last = time.perf_counter()
        for x, y, cpu, stopped in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, stopped.sum().item() / 2, cpu.sum().item() / 2))
            last = now
            if now - begin > 21.5 and len(rows) > 75:
                break
        del loader
    step, wait, stopped, cpu = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=stopped, workers_cpu_s=cpu, steps=len(rows))


if __name__ == "__main__":
    main()
