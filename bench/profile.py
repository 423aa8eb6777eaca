"""(k) What the I/O profile costs: a loader with it over the same loader without, by interleaved pairs.

The loader reads warm files in the training process, so that its throughput is what its CPU time allows: that is timed.
"""

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from bench.pairs import Ratio, interleaved
from bench.tables import goal
from benchsuite.storage import KINDS, LOADERS, load
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.sample import Recycled, read_whole
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import LoaderProtocol
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.io_trace import Tracer
from benchsuite.storage.observe.page_cache import warm
from benchsuite.workloads.facts import FACTS

MAX_RATIO = 1.05
FORMATS = ("files", "hdf5", "webdataset", "lmdb", "tfrecord", "parquet", "mds", "tokens")
WORKLOADS = {"tokens": ("gpt_neox", {"seq_len": 512, "vocab_size": 50304})}
"""Formats that store no BERT sequences, and what they get of about the same length."""
PAIRS = 40
SEQUENCES = 2048
DIRECT_FILES, DIRECT_ROUNDS = 5000, 15
TURN_S = 0.2
"""How long a turn of one of the two takes, about."""


def datasets(folder: Path) -> dict[str, Dataset]:
    """Sequences of a few kilobytes, the worst case: little is decoded, so that reading is most of the work."""
    for name in FORMATS:
        workload, known = _samples(name)
        if name in ("files", *WORKLOADS):
            generate_dataset(folder / name, Wanted(workload, "reference", name, **known), SEQUENCES)
        else:
            convert_dataset(folder / "files", folder / name, Wanted(workload, "reference", name, **known))
    return {name: open_dataset(folder / name) for name in FORMATS}


def _samples(name: str) -> tuple[str, dict[str, Any]]:
    """The workload whose samples a format gets, their kind and parameters."""
    workload, params = WORKLOADS.get(name, ("bert", FACTS["bert"].variants["reference"].sample))
    return workload, {"kind": FACTS[workload].kind, "params": params}


def _turn(loader: LoaderProtocol, batches: int, tracer: Tracer | None) -> Callable[[], float]:
    def run() -> float:
        if tracer:
            tracer.start()
        started = process_time()
        for _ in range(batches):
            next(loader)
        seconds = process_time() - started
        if tracer:
            tracer.stop()
        return seconds

    return run


def in_line(dataset: Dataset) -> tuple[Ratio, Ratio]:
    """Seconds with the profile over those without, of a loader that reads in the training process; and a null run.

    One core reads and decodes, so that nothing is hidden, and the loader is the same: its calls are replaced for the
    profile's turns alone.
    """
    warm(dataset.data_files())
    _, known = _samples(dataset.manifest.format)
    kind, params = load(KINDS, known["kind"]), known["params"]
    spec = DataSpec(format=dataset.manifest.format, num_workers=0, pin_memory=False)
    loader: LoaderProtocol = load(LOADERS, "threads")(LoaderInput(dataset, spec, kind, params, 16, 0, 1, 0))
    plain = _turn(loader, 8, None)
    plain()
    batches = max(4, round(8 * TURN_S / plain()))
    profiled, plain = _turn(loader, batches, Tracer(dataset, 1)), _turn(loader, batches, None)
    return interleaved(profiled, plain, PAIRS), interleaved(plain, plain, PAIRS)


def direct_cost_us(dataset: Dataset) -> float:
    """CPU microseconds that noting adds to reading a file whole: open, fstat, preadv, close."""
    path, tracer = dataset.data_files()[0], Tracer(dataset, 1)

    def files() -> float:
        started = process_time()
        for _ in range(DIRECT_FILES):
            read_whole(path, "file", buffer)
        return (process_time() - started) / DIRECT_FILES * 1e6

    buffer, costs = Recycled(), []
    for _ in range(DIRECT_ROUNDS):
        plain = files()
        tracer.start()
        costs.append(files() - plain)
        tracer.stop()
    return float(np.median(costs))


def measure(folder: Path) -> tuple[dict[str, tuple[Ratio, Ratio]], float]:
    """Ratios and null runs by format, and the direct cost of a file."""
    made = datasets(folder)
    return {name: in_line(dataset) for name, dataset in made.items()}, direct_cost_us(made["files"])


def show(folder: Path) -> None:
    """Print the ratio and the null run of each format."""
    print("(k) CPU seconds of a loader with its I/O profiled over those without; warm, reading in the training process")
    ratios, direct_us = measure(folder)
    for name, (ratio, null) in ratios.items():
        what = "token" if name in WORKLOADS else "BERT"
        print(f"    {what} sequences, {name}: {ratio}; null run {null.median:.4f} [{null.low:.4f} {null.high:.4f}]")
        print(goal(ratio.high <= MAX_RATIO, f"upper bound <= {MAX_RATIO}"))
    print(f"    noting how a file is read whole (open, fstat, read, close): {direct_us:.1f} us")
