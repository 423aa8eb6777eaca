"""Gait windows in a curriculum of short stages: the loader makes a ProcessPoolExecutor with spawned workers for each stage, and the loop
waits until they have imported and read their calibration."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas
import torch
from scipy import signal
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False
tables = {}


def opened(path):
    """Each worker's start: the calibration of all sensors."""
    tables["gain"] = pandas.read_csv(path).set_index("sensor")["gain"].to_numpy(np.float32)
    tables["filter"] = signal.butter(4, [0.02, 0.4], btype="band", output="sos")


def windows(seed, hardness):
    """One batch: raw accelerations, calibrated and band-passed."""
    began = time.perf_counter()
    random = np.random.default_rng(seed)
    sensors, labels = random.integers(0, 400, 32), random.integers(0, 4, 32)
    phase = np.arange(256)[None, None] * (0.1 + 0.05 * labels[:, None, None]) + random.random((32, 3, 1))
    raw = (np.sin(phase) + hardness * random.standard_normal((32, 3, 256))) * tables["gain"][sensors][:, None, None]
    clean = signal.sosfilt(tables["filter"], raw, axis=-1).astype(np.float32)
    return clean, labels, time.perf_counter() - began


class Curriculum:
    """A pass is a stage; each stage has noisier walks."""

    def __init__(self, calibration, batches):
        self.calibration, self.batches, self.stage = calibration, batches, 0
        self.starting, self.filtering = 0.0, 0.0

    def __iter__(self):
        self.stage += 1
        began = time.perf_counter()
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), opened, (self.calibration,)) as pool:
            jobs = [pool.submit(windows, 1000 * self.stage + number, 0.1 * self.stage) for number in range(self.batches)]
            for number, job in enumerate(jobs):
                clean, labels, seconds = job.result()
                if number == 0:
                    self.starting += time.perf_counter() - began
                self.filtering += seconds
                yield torch.from_numpy(clean), torch.from_numpy(labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calibration = folder() / "calibration.csv"
    pandas.DataFrame({"sensor": range(400), "gain": np.random.default_rng(0).uniform(0.5, 2, 400)}).to_csv(calibration, index=False)
    model = nn.Sequential(nn.Conv1d(3, 64, 9, padding=4), nn.ReLU(), nn.Conv1d(64, 64, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 4))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    curriculum = Curriculum(calibration, 14)
    loader = watch(curriculum)
    steps, waited, began = 0, 0.0, time.perf_counter()
    while time.perf_counter() - began < 23:
        asked = time.perf_counter()
        for clean, labels in loader:
            waited += time.perf_counter() - asked
            loss = nn.functional.cross_entropy(model(clean), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            asked = time.perf_counter()
    wall = time.perf_counter() - began
    tell(
        steps=steps, stages=curriculum.stage, step=wall / steps, loader=waited / steps, start=curriculum.starting / steps,
        filtering_in_workers=curriculum.filtering / steps, share=curriculum.starting / wall,
    )  # fmt: skip


if __name__ == "__main__":
    main()
