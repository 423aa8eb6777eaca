"""A surrogate of a flow solver learns from snapshots while the solver still runs: a thread looks into its output
folder, and what is new goes to the training by a queue."""
import queue
import subprocess
import sys
import threading
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False

SOLVER = """
import os, sys, threading, time
import numpy as np
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
u, n = np.random.default_rng(0).standard_normal((96, 96)).astype("f4"), 0
while True:
    for _ in range(20):
        u = u + 0.2 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u)
    u += 0.05 * np.random.default_rng(n).standard_normal(u.shape).astype("f4")
    np.save(f"{sys.argv[1]}/part.tmp.npy", u)
    os.rename(f"{sys.argv[1]}/part.tmp.npy", f"{sys.argv[1]}/snap_{n:06d}.npy")
    n += 1
    time.sleep(0.11)                      # most of it runs elsewhere
"""


class Snapshots:
    """Batches of patches of two snapshots, one after the other."""

    def __init__(self, path, poll=0.5):
        self.path, self.poll, self.slept = path, poll, 0.0
        self.queue = queue.Queue(8)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        rng, before, at = np.random.default_rng(1), None, 0
        while True:
            file = self.path / f"snap_{at:06d}.npy"
            if not file.exists():
                t = time.perf_counter()
                time.sleep(self.poll)
                self.slept += time.perf_counter() - t
                continue
            now, at = np.load(file), at + 1
            file.unlink()
            if before is not None:
                corners = rng.integers(0, 64, (16, 2))
                pairs = [np.stack([f[r : r + 32, c : c + 32] for r, c in corners]) for f in (before, now)]
                self.queue.put(tuple(torch.from_numpy(p)[:, None] for p in pairs))
            before = now

    def __iter__(self):
        while True:
            yield self.queue.get()


def main():
    torch.set_num_threads(1)
    path = folder() / "out"
    path.mkdir()
    solver = subprocess.Popen([sys.executable, "-c", SOLVER, path], stdin=subprocess.PIPE)
    snapshots = Snapshots(path)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(snapshots):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(x + model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=snapshots.slept)
    solver.kill()


if __name__ == "__main__":
    main()
