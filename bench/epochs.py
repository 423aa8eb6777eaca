"""A cold window of a few steps, and a trial with `measure.epochs: 1`, beside a whole cold epoch on a slow disk.

The truth is a loop over every batch of an epoch, timed from the start of the workers to the end of the last step.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.scenes import make_one
from bench.tables import goal
from bench.throttle import CannotThrottle, throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.results.store.record import TrialFigures
from benchsuite.runner.single_trial import run_in_processes
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader
from benchsuite.storage.observe.page_cache import evict
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord", "parquet", "tokens")
WANTED = dict.fromkeys(FORMATS, (0.25, 0.5, 0.8, 0.95)) | {"tokens": (0.25,)}
"""Utilizations; the first batch of tokens has the kernel read the whole file ahead, whatever a step takes."""
NEAR, MOST_TRIES = 0.015, 6
"""The truth is made by a step of the length that gives it: it is searched for, as readers' pace varies."""
RATE_BYTES_PER_S = 15_000_000
WINDOW_STEPS, REPEATS = 24, 2
GOAL = 0.02
DATA: dict[str, Any] = {"reader": "stock", "num_workers": 2, "prefetch_factor": 2, "shuffle_buffer": 16}


class Epoch(NamedTuple):
    """What is read in an epoch: samples of a workload's reference size in so large batches."""

    workload: str
    samples: int
    batch: int

    @property
    def steps(self) -> int:
        return self.samples // self.batch

    @property
    def params(self) -> dict[str, int]:
        return dict(FACTS[self.workload].variants["reference"].sample)


PHOTOGRAPHS, WINDOWS = Epoch("resnet50", 2400, 16), Epoch("gpt_neox", 64_000, 400)
"""Some 260 MB of each; windows are tokens."""


def epoch_of(form: str) -> Epoch:
    """What a format holds here."""
    return WINDOWS if form == "tokens" else PHOTOGRAPHS


class Cell(NamedTuple):
    """One format at one utilization."""

    form: str
    truth: float
    epoch: TrialFigures
    windows: list[TrialFigures]


def true_au(root: Path, form: str, step_s: float) -> tuple[float, float]:
    """Utilization over a whole cold epoch of steps that last so long, and seconds until its last batch came."""
    dataset, epoch = open_dataset(root / form), epoch_of(form)
    evict(dataset.data_files())
    kind = load(KINDS, FACTS[epoch.workload].kind)
    reading = LoaderInput(dataset, DataSpec(**DATA), kind, epoch.params, epoch.batch, 0, 1, 0)
    with throttled(root, RATE_BYTES_PER_S):
        began = end = time.perf_counter()
        loader = TorchLoader(reading)
        try:
            for _ in range(epoch.steps):
                next(loader)
                came = time.perf_counter()
                end = max(came, end) + step_s
                time.sleep(max(0.0, end - step_s - came))
        finally:
            loader.close()
    return epoch.steps * step_s / (end - began), came - began


def step_for(root: Path, form: str, wanted: float, epoch_s: float) -> float:
    """Seconds of a step whose epoch has about the utilization that is wanted.

    Where steps wait for their input, utilization grows as they do; where they do not, what is lost falls.
    """
    step_s = wanted * epoch_s / epoch_of(form).steps
    for _ in range(MOST_TRIES):
        found, _ = true_au(root, form, step_s)
        if abs(found - wanted) <= NEAR:
            break
        longer = wanted / found
        step_s *= min(1.3, max(longer, (1 - found) / (1 - wanted))) if longer > 1 else longer
    return step_s


def measured(root: Path, form: str, step_s: float, **measure: int) -> TrialFigures:
    """Figures of one cold trial."""
    epoch = epoch_of(form)
    point = plan_trial(
        {
            "workload": epoch.workload,
            "variant": "reference",
            "device": f"emulated:{step_s * 1e3:.3f}ms",
            "batch_size": epoch.batch,
            "data": {"root": str(root / form), "format": form, "cache": "cold", **DATA},
            "measure": {"warmup_steps": 1, "ceilings": False, "timeout_s": 300, **measure},
        }
    )
    with throttled(root, RATE_BYTES_PER_S):
        record, _ = run_in_processes(point)
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
        epoch = epoch_of(form)
        place = folder / epoch.workload
        if not (place / form).exists():
            make_one(place, epoch.workload, FACTS[epoch.workload].kind, epoch.params, epoch.samples, form, {})
        _, epoch_s = true_au(place, form, 0.0)
        for wanted in WANTED[form]:
            step_s = step_for(place, form, wanted, epoch_s)
            windows = [measured(place, form, step_s, steps=WINDOW_STEPS) for _ in range(REPEATS)]
            truth, _ = true_au(place, form, step_s)  # anew: of those searched for, it was the noise that chose one
            found.append(Cell(form, truth, measured(place, form, step_s, epochs=1), windows))
            print(row(found[-1]), flush=True)
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


def show(folder: Path) -> None:
    """Print each cell as it is measured, and how many are near the truth."""
    print("(l) measure.epochs: 1, and cold windows of 24 steps, beside whole epochs, on a disk limited to 15 MB/s")
    columns = ("format", "AU of the epoch", "by epochs: 1", "AU of the windows", "read amplification", "they say")
    print(f"| {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    try:
        found = report(folder)
    except CannotThrottle as error:
        print(f"    not measured: {error}")
        return
    trials = {
        "epochs: 1": [(cell.truth, cell.epoch) for cell in found],
        "windows": [(cell.truth, window) for cell in found for window in cell.windows],
    }
    for name, pairs in trials.items():
        off = [off_by(*pair) for pair in pairs]
        near = sum(apart <= GOAL for apart in off)
        held = sum(apart <= GOAL + (pair[1].au_epoch_error or 0) for apart, pair in zip(off, pairs, strict=True))
        said = f"{name}: {near} of {len(pairs)} within {GOAL} of the epoch, {held} within their error and that"
        print(goal(near == len(pairs), said))
