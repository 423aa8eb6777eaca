"""(j) What `benchsuite.watch` costs: a loop with it over the same loop without, and the cost of a step by itself."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import benchsuite
from bench.pairs import Ratio, interleaved
from bench.scenes import photographs_in
from bench.steps import BATCH, VARIANT, PlainImages
from bench.tables import goal
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.workloads.resnet50 import WORKLOAD

MAX_RATIO = 1.01
STEPS = 8
PAIRS = 60
FILE_PAIRS = 30
"""Pairs of passes over all JPEGs."""
DIRECT_STEPS = 50_000
DIRECT_ROUNDS = 9


def training(loader: Iterable[Any], mark: Callable[[str], None] | None) -> Callable[[], float]:
    """A block of a plain training loop that a user may have written; marks are the watch's. Returns its seconds."""
    model = WORKLOAD.build(VARIANT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> float:
        start = time.perf_counter()
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            if mark is not None:
                mark("forward")
            loss.backward()
            if mark is not None:
                mark("backward")
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    return run


def watched_over_plain(loader: Iterable[Any], pairs: int) -> Ratio:
    """Interleaved pairs of passes over the loader, with three moments noted in a step."""
    watch = benchsuite.watch(loader, warmup_steps=0, quiet=True)
    ours, plain = training(watch, watch.mark), training(loader, None)
    for warm_up in (ours, plain):
        warm_up()
    return interleaved(ours, plain, pairs)


def null_run(loader: Iterable[Any]) -> Ratio:
    """The same loop without the watch against itself."""
    one, other = training(loader, None), training(loader, None)
    for warm_up in (one, other):
        warm_up()
    return interleaved(one, other, PAIRS)


def direct_cost_us(marks: tuple[str, ...]) -> float:
    """Microseconds on a core a step of a loop that does nothing: watched, less the same loop without; the median."""
    batches = [torch.zeros(BATCH, 3)] * DIRECT_STEPS
    watch = benchsuite.watch(batches, warmup_steps=0, quiet=True)

    def seconds(loader: Iterable[Any], mark: Callable[[str], None] | None) -> float:
        start = time.thread_time()
        for _ in loader:
            for part in marks if mark is not None else ():
                mark(part)
        return time.thread_time() - start

    costs = [seconds(watch, watch.mark) - seconds(batches, None) for _ in range(DIRECT_ROUNDS)]
    return median(costs) / DIRECT_STEPS * 1e6


def measure(files: Path) -> tuple[dict[str, Ratio], dict[str, float]]:
    """Ratios by name, and direct costs in microseconds by what is marked."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = (torch.randn(BATCH, 3, 64, 64), torch.zeros(BATCH, dtype=torch.int64))
    batches = [batch] * STEPS
    images = PlainImages(open_dataset(files))
    with_worker = DataLoader(images, BATCH, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    ratios = {
        "watched / plain, batches in memory": watched_over_plain(batches, PAIRS),
        "null run: plain / plain": null_run(batches),
        "watched / plain, DataLoader of JPEG files, one worker": watched_over_plain(with_worker, FILE_PAIRS),
    }
    return ratios, {
        "no marks": direct_cost_us(()),
        "3 marks": direct_cost_us(("forward", "backward", "optimizer")),
    }


def show(folder: Path) -> None:
    """Print the ratios and direct costs."""
    ratios, direct_us = measure(photographs_in(folder))
    print("(j) a training loop in benchsuite.watch over the same loop without (ResNet-50 tiny, batch 8, 1 thread)")
    for name, ratio in ratios.items():
        print(f"    {name}: {ratio}")
        if name.startswith("watched"):
            print(goal(ratio.low <= MAX_RATIO, f"lower bound <= {MAX_RATIO}"))
    for name, cost_us in direct_us.items():
        print(f"    direct cost, {name}: {cost_us:.1f} us a step")
