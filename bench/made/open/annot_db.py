"""Bird calls: spectrogram crops are cut where the annotation database says. The annotators go on working: their tool
keeps the SQLite file (rollback journal) in exclusive transactions while it saves a session."""
import sqlite3
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bclock import Clock
from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False

TOOL = """
import random, sqlite3, sys, threading, time
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
threading.Thread(target=lambda: (sys.stdin.read(), __import__("os")._exit(0)), daemon=True).start()
n = 0
while True:
    db.execute("BEGIN EXCLUSIVE")
    db.execute("UPDATE session SET saved = ?", (n,))
    time.sleep(random.uniform(0.15, 0.35))  # the tool uploads the session before it commits
    db.execute("COMMIT")
    n += 1
    time.sleep(0.05)
"""


class Calls(Dataset):
    def __init__(self, root, clock):
        self.root, self.clock, self.db = root, clock, None
        self.recordings = np.load(root / "recordings.npy", mmap_mode="r")

    def __len__(self):
        return 6000

    def __getitem__(self, i):
        if self.db is None:
            self.db = sqlite3.connect(self.root / "annotations.db", timeout=60)
        with self.clock.part():
            recording, start, species = self.db.execute(
                "SELECT recording, start, species FROM call WHERE id = ?", (i,)
            ).fetchone()
        wave = torch.from_numpy(np.array(self.recordings[recording, start : start + 8192]))
        power = torch.stft(wave, 512, 128, window=torch.hann_window(512), return_complex=True).abs()
        return torch.log1p(power)[None, :128, :64], species


def prepare(root):
    rng = np.random.default_rng(0)
    np.save(root / "recordings.npy", rng.standard_normal((20, 160000), dtype=np.float32))
    db = sqlite3.connect(root / "annotations.db")
    db.execute("CREATE TABLE call (id INTEGER PRIMARY KEY, recording INTEGER, start INTEGER, species INTEGER)")
    db.execute("CREATE TABLE session (saved INTEGER)")
    db.execute("INSERT INTO session VALUES (0)")
    rows = [(i, int(rng.integers(20)), int(rng.integers(150000)), int(rng.integers(12))) for i in range(6000)]
    db.executemany("INSERT INTO call VALUES (?, ?, ?, ?)", rows)
    db.commit()
    db.close()


def main():
    torch.set_num_threads(1)
    root = folder()
    prepare(root)
    tool = subprocess.Popen([sys.executable, "-c", TOOL, root / "annotations.db"], stdin=subprocess.PIPE)
    clock = Clock(root / "query")
    loader = DataLoader(Calls(root, clock), batch_size=6, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 12)
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    each = clock.seconds()
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=sum(each) / 2, each=each)
    tool.kill()


if __name__ == "__main__":
    main()
