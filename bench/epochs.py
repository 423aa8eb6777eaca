"""A cold window of a few steps, and a trial with `measure.epochs: 1`, beside a whole cold epoch on a slow disk.

The truth is a loop over every batch of an epoch, timed from the start of the workers to the end of the last step.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.loaders import make_one
from bench.throttle import throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.results.store.record import TrialFigures
from benchsuite.runner.single_trial import in_processes
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.stock import StockLoader
from benchsuite.storage.observe.page_cache import evict
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord")
WANTED = (0.25, 0.5, 0.8, 0.95)
NUM_SAMPLES, BATCH, WORKERS, PREFETCH, BUFFER = 2400, 16, 2, 2, 16
RATE_BYTES_PER_S = 15_000_000
WINDOW_STEPS, REPEATS = 24, 2
GOAL = 0.02
PARAMS = dict(FACTS["resnet50"].variants["reference"].sample)
DATA: dict[str, Any] = {
    "reader": "stock",
    "num_workers": WORKERS,
    "prefetch_factor": PREFETCH,
    "shuffle_buffer": BUFFER,
}


class Cell(NamedTuple):
    """One format at one utilization."""

    form: str
    truth: float
    epoch: TrialFigures
    windows: list[TrialFigures]


def true_au(root: Path, form: str, step_s: float) -> tuple[float, float]:
    """Utilization over a whole cold epoch of steps that last so long, and seconds until its last batch came."""
    dataset = open_dataset(root / form)
    evict(dataset.data_files())
    steps = NUM_SAMPLES // BATCH
    reading = LoaderInput(dataset, DataSpec(**DATA), load(KINDS, "image"), PARAMS, BATCH, 0, 1, 0)
    with throttled(root, RATE_BYTES_PER_S):
        began = end = time.perf_counter()
        loader = StockLoader(reading)
        try:
            for _ in range(steps):
                next(loader)
                came = time.perf_counter()
                end = max(came, end) + step_s
                time.sleep(max(0.0, end - step_s - came))
        finally:
            loader.close()
    return steps * step_s / (end - began), came - began


def measured(root: Path, form: str, step_s: float, **measure: int) -> TrialFigures:
    """Figures of one cold trial."""
    point = plan_trial(
        {
            "workload": "resnet50",
            "variant": "reference",
            "device": f"emulated:{step_s * 1e3:.3f}ms",
            "batch_size": BATCH,
            "data": {"root": str(root / form), "format": form, "cache": "cold", **DATA},
            "measure": {"warmup_steps": 1, "ceilings": False, "timeout_s": 300, **measure},
        }
    )
    with throttled(root, RATE_BYTES_PER_S):
        record, _ = in_processes(point)
    if record.status != "ok":
        raise RuntimeError(f"{form}: {record.reason}")
    return record.figures


def report(folder: Path) -> list[Cell]:
    """Every format at every utilization.

    Raises:
        CannotThrottle: reads cannot be limited here.
    """
    found = []
    for form in FORMATS:
        if not (folder / form).exists():
            make_one(folder, "resnet50", "image", PARAMS, NUM_SAMPLES, form, {})
        _, epoch_s = true_au(folder, form, 0.0)
        for wanted in WANTED:
            step_s = wanted * epoch_s / (NUM_SAMPLES // BATCH)
            windows = [measured(folder, form, step_s, steps=WINDOW_STEPS) for _ in range(REPEATS)]
            cell = Cell(form, true_au(folder, form, step_s)[0], measured(folder, form, step_s, epochs=1), windows)
            found.append(cell)
            print(row(cell), flush=True)
    return found


def row(cell: Cell) -> str:
    """A row of the table."""
    first = [f"{one.au:.3f}" for one in cell.windows]
    ahead = [f"{one.read_amplification or 1.0:.2f}" for one in cell.windows]
    whole = f"{cell.epoch.au_epoch:.3f} (first batch after {cell.epoch.first_batch_s:.1f} s)"
    told = [f"{one.au_epoch:.3f} ±{one.au_epoch_error:.3f}" for one in cell.windows]
    cells = (cell.form, f"{cell.truth:.3f}", whole, " ".join(first), " ".join(ahead), ", ".join(told))
    return f"| {' | '.join(cells)} |"


def off_by(truth: float, said: TrialFigures) -> float:
    """How far what a trial says of its epoch is from the truth."""
    return abs((said.au_epoch or 0) - truth)
