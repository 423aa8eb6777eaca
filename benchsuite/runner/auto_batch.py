"""`batch_size: auto`: the largest batch per data-parallel rank that fits the device, found by trying.

Each try is a short trial on synthetic samples in processes of its own. The batch doubles until it does not fit, then
the gap is halved until it is a sixteenth. Batches are multiples of what grad_accum and pipelines cut them into.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchsuite.analysis.record_builder import new_attempt
from benchsuite.contract.errors import UserError
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.launch.launcher import Launcher, machine_of
from benchsuite.launch.work_folder import shared_folder
from benchsuite.runner.attempt import measure
from benchsuite.storage.dataset.spec import DataSpec

MAX_BATCH = 1 << 20
RESOLUTION = 16
"""The batch found is within this part of itself of the largest."""
PROBE_STEPS = 2


def largest(fits: Callable[[int], bool], unit: int) -> int:
    """The largest multiple of `unit` that fits, to a sixteenth of itself; 0 where not even one does."""
    low, high = 0, unit
    while high <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > max(unit, low // RESOLUTION):
        middle = (low + high) // 2 // unit * unit
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fitted(point: Point, launcher: Launcher, store: Path | None = None) -> Point:
    """The point with the largest batch that fits; as it is where its batch is given.

    `store` is where ranks on other nodes leave what they found.

    Raises:
        UserError: no batch fits, or a try failed for another reason than memory.
    """
    spec = point.spec
    if spec.batch_size != "auto":
        return point

    measured = spec.measure.model_copy(update={"steps": PROBE_STEPS, "warmup_steps": 1})
    short = {"data": DataSpec(source="synthetic"), "measure": measured}  # a trial that reads nothing

    def fits(batch_size: int) -> bool:
        tried = spec.model_copy(update={"batch_size": batch_size, **short})
        probe = replace(point, spec=tried, dataset=None, manifest=None)
        attempt = new_attempt(probe, "default", 0, "auto", None)
        with shared_folder(store, launcher, "auto") as folder:
            record, _ = measure(attempt, launcher, folder)
        if record.status not in ("ok", "oom"):
            raise UserError(f"batch_size auto: trying {batch_size} failed: {record.reason}")
        return record.status == "ok"

    found = largest(fits, spec.batch_unit)
    if not found:
        raise UserError(f"batch_size auto: not even {spec.batch_unit} samples a rank fit the device's memory")
    sized = replace(point, spec=spec.model_copy(update={"batch_size": found}))
    reason = why_invalid(sized, machine_of(launcher))
    if reason:
        raise UserError(f"batch_size auto found {found}: {reason}")
    return sized
