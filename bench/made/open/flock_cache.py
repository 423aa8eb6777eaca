"""Workers read a cache under a shared flock; a compactor of another program holds the exclusive one while it syncs its pages."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False

COMPACTOR = """
import fcntl, hashlib, os, sys, time
root = sys.argv[1]
lock = os.open(root + "/cache.lock", os.O_RDWR)
journal = os.open(root + "/journal", os.O_RDWR | os.O_CREAT)
page = os.urandom(1 << 20)
while os.getppid() == int(sys.argv[2]):
    fcntl.flock(lock, fcntl.LOCK_EX)
    until = time.perf_counter() + 0.24          # a transaction: pages are written and synced one after the other
    k = 0
    while time.perf_counter() < until:
        os.pwrite(journal, page[:65536], (k % 16) * 65536)
        os.fsync(journal)
        k += 1
    fcntl.flock(lock, fcntl.LOCK_UN)
    for _ in range(12):
        hashlib.sha256(page).digest()           # checks its pages without the lock
"""


class Cache(Dataset):
    def __init__(self, root) -> None:
        self.root = root
        self.lock = None

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i):
        if self.lock is None:
            self.lock = os.open(self.root / "cache.lock", os.O_RDWR)
        start = time.perf_counter()
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        waited = time.perf_counter() - start
        try:
            row = np.fromfile(self.root / "cache.bin", dtype=np.float32, count=4096, offset=(i % 500) * 16384)
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)
        return torch.from_numpy(row), waited


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    (root / "cache.lock").touch()
    np.random.default_rng(0).normal(size=(500, 4096)).astype(np.float32).tofile(root / "cache.bin")
    compactor = subprocess.Popen([sys.executable, "-c", COMPACTOR, str(root), str(os.getpid())], start_new_session=True)
    try:
        model = nn.Sequential(nn.Linear(4096, 128), nn.Tanh(), nn.Linear(128, 4096))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = []
        begun = last = time.perf_counter()
        for x, waited in watch(DataLoader(Cache(root), batch_size=3, num_workers=2)):
            got = time.perf_counter()
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, float(waited.sum()) / 2))
            last = now
            if len(rows) >= 72 and now - begun > 23:
                break
    finally:
        os.kill(compactor.pid, signal.SIGTERM)
        compactor.wait()
    step_s, wait_s, lock_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=lock_s, steps=len(rows) - 10)


if __name__ == "__main__":
    main()
