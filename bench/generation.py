"""(e) Generating volumes beside the disk's own streaming speed: turns in one run, both flushed to the disk.

A first write is not counted: where a virtual machine's memory is touched for the first time, page cache is slow to get.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.tables import goal
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS

MIN_RATIO = 0.5
SAMPLES_WRITTEN = 40
ROUNDS = 4
BLOCK_BYTES = 8 << 20
FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord")


@dataclass(frozen=True)
class Written:
    """Bytes per second of a generated dataset and of plain writes, and the median and range of their ratios."""

    ours: float
    disk: float
    ratio: float
    least: float
    most: float


def disk_rate(path: Path, num_bytes: int) -> float:
    """Bytes per second of writing one buffer again and again and flushing it."""
    block = np.random.default_rng(0).bytes(BLOCK_BYTES)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // BLOCK_BYTES):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return num_bytes // BLOCK_BYTES * BLOCK_BYTES / seconds


def generate_rate(folder: Path, name: str) -> tuple[float, int]:
    """Bytes per second of a generated dataset of reference volumes, start of processes included, and its bytes."""
    spec = FACTS["unet3d"]
    start = time.perf_counter()
    made = generate_dataset(
        folder,
        Wanted("unet3d", "reference", name, kind=spec.kind, params=spec.variants["reference"].sample),
        SAMPLES_WRITTEN,
    )
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return made.stored_bytes / seconds, made.stored_bytes


def measure(folder: Path) -> dict[str, Written]:
    """Each format's rate, beside the disk's."""
    found = {}
    _, size = generate_rate(folder / "first", "files")
    for name in FORMATS:
        rounds = []
        for _ in range(ROUNDS):
            before = disk_rate(folder / "plain", size)
            ours, _ = generate_rate(folder / name, name)
            rounds.append((ours, (before + disk_rate(folder / "plain", size)) / 2))
        ours, disk = np.median(rounds, axis=0)
        ratios = [float(a / b) for a, b in rounds]
        found[name] = Written(float(ours), float(disk), float(np.median(ratios)), min(ratios), max(ratios))
    return found


def show(folder: Path) -> None:
    """Print each format's rate beside the disk's."""
    print("(e) writing volumes beside the disk's own streaming speed, both flushed to the disk")
    for name, ratio in measure(folder).items():
        rates = f"{ratio.ours / 1e6:,.0f} MB/s, disk {ratio.disk / 1e6:,.0f} MB/s"
        print(f"    {name}: {rates}, ratio {ratio.ratio:.2f} ({ratio.least:.2f}..{ratio.most:.2f})")
        print(goal(ratio.ratio >= MIN_RATIO, f">= {MIN_RATIO}"))
