"""Sleep stages: a ProcessPoolExecutor of spawned processes is made anew for each pass ("against leaks"), imports torch
and SciPy and opens the nights again; each pass waits for it before its first batch."""
CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

EPOCHS_OF_SLEEP, RATE_X_30 = 9000, 3000
nights = stages = band = None
ready_at = 0.0, 0.0


def open_nights(path):
    global nights, stages, band, ready_at
    from scipy import signal, stats  # noqa: F401

    band = signal.butter(2, [0.3, 35], "bandpass", fs=100, output="sos")
    loaded = np.load(path)
    nights, stages = loaded["eeg"], loaded["stage"]
    ready_at = time.time(), time.process_time()


def prepare(rows):
    from scipy import signal, stats

    x = signal.sosfilt(band, nights[rows].astype(np.float32)).astype(np.float32)
    return stats.zscore(x, axis=1), stages[rows], ready_at


class Passes:
    def __init__(self, path, steps, batch):
        self.path, self.steps, self.batch = path, steps, batch
        self.rng = np.random.default_rng(0)
        self.start_s = self.start_cpu_s = 0.0

    def __iter__(self):
        began, first = time.time(), True
        context = get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context, initializer=open_nights, initargs=(self.path,)) as pool:
            rows = self.rng.integers(0, EPOCHS_OF_SLEEP, (self.steps, self.batch))
            for x, y, (ready, cpu) in pool.map(prepare, rows):
                if first:
                    self.start_s += ready - began
                    self.start_cpu_s += cpu
                    first = False
                yield torch.from_numpy(x)[:, None], torch.from_numpy(y)


def main():
    torch.set_num_threads(1)
    path = folder() / "nights.npz"
    rng = np.random.default_rng(1)
    eeg = rng.normal(0, 50, (EPOCHS_OF_SLEEP, RATE_X_30)).astype(np.int16)
    np.savez_compressed(path, eeg=eeg, stage=rng.integers(0, 5, EPOCHS_OF_SLEEP))
    net = nn.Sequential(
        nn.Conv1d(1, 16, 50, stride=10), nn.ReLU(), nn.Conv1d(16, 32, 8, stride=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    source = Passes(str(path), steps=14, batch=32)
    loader = watch(source)
    steps = passes = 0
    step_s = wait_s = end_s = 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < 23 or steps < 84:
        passes += 1
        last = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            wait_s += got - last
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
            steps += 1
            last = time.perf_counter()
            step_s += last - got
        end_s += time.perf_counter() - last  # the pool's end
    wall = time.perf_counter() - start
    tell(steps=steps, passes=passes, wall_s=wall, step_s=step_s, wait_s=wait_s, end_s=end_s, start_s=source.start_s,
         start_cpu_s_of_a_worker=source.start_cpu_s)  # fmt: skip


if __name__ == "__main__":
    main()
