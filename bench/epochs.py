"""A cold window of a few steps beside a whole cold epoch, on a disk whose rate is limited.

Where the kernel reads ahead of samples in random order, the first steps pay for later ones: records have `au_epoch`.
"""

from pathlib import Path
from typing import NamedTuple

from bench.loaders import make_one
from bench.throttle import throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.results.store.record import TrialFigures
from benchsuite.runner.single_trial import in_processes
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord")
WANTED = (0.25, 0.5, 0.8, 0.95)
NUM_SAMPLES, BATCH, WORKERS, PREFETCH, BUFFER = 1200, 16, 2, 2, 48
RATE_BYTES_PER_S = 15_000_000
WINDOW_STEPS, EPOCH_STEPS = 24, 56
"""The most that a cold trial may take of these samples, with what readers hold: nine tenths of an epoch."""
REPEATS = 2


class Cell(NamedTuple):
    """One format at one utilization."""

    form: str
    step_s: float
    epoch: TrialFigures
    windows: list[TrialFigures]

    @property
    def truth(self) -> float:
        """AU of the epoch."""
        return self.epoch.au or 0.0

    def told(self) -> list[float]:
        """What the windows say of the epoch: the estimate where there is one."""
        return [one.au_epoch if one.au_epoch is not None else one.au or 0.0 for one in self.windows]


def measured(root: Path, form: str, step_s: float, steps: int) -> TrialFigures:
    """Figures of one cold trial."""
    point = plan_trial(
        {
            "workload": "resnet50",
            "variant": "reference",
            "device": f"emulated:{step_s * 1e3:.3f}ms",
            "batch_size": BATCH,
            "data": {
                "root": str(root / form),
                "format": form,
                "reader": "stock",
                "cache": "cold",
                "num_workers": WORKERS,
                "prefetch_factor": PREFETCH,
                "shuffle_buffer": BUFFER,
            },
            "measure": {"steps": steps, "warmup_steps": 1, "ceilings": False, "timeout_s": 300},
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
    params = dict(FACTS["resnet50"].variants["reference"].sample)
    for form in FORMATS:
        if not (folder / form).exists():
            make_one(folder, "resnet50", "image", params, NUM_SAMPLES, form, {})
        starved = measured(folder, form, 0.001, EPOCH_STEPS)
        batch_s = BATCH / (starved.samples_per_s or 1.0)
        for wanted in WANTED:
            step_s = wanted * batch_s
            windows = [measured(folder, form, step_s, WINDOW_STEPS) for _ in range(REPEATS)]
            cell = Cell(form, step_s, measured(folder, form, step_s, EPOCH_STEPS), windows)
            found.append(cell)
            print(row(cell), flush=True)
    return found


def row(cell: Cell) -> str:
    """A row of the table."""
    first = [f"{one.au:.3f}" for one in cell.windows]
    ahead = [f"{one.read_amplification or 1.0:.2f}" for one in cell.windows]
    told = [
        f"{said:.3f}" + (f" ±{one.au_epoch_error:.3f}" if one.au_epoch_error is not None else "")
        for said, one in zip(cell.told(), cell.windows, strict=True)
    ]
    whole = f"{cell.truth:.3f} ({cell.epoch.read_amplification or 1.0:.2f})"
    cells = (cell.form, whole, " ".join(first), " ".join(ahead), " ".join(told))
    return f"| {' | '.join(cells)} |"
