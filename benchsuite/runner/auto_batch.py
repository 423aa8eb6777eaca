"""`batch_size: auto`: the largest batch per data-parallel rank that fits the device, found by trying.

Each try is a short trial of the point itself, with its loader, in its own processes: where one rank runs out of memory
the others are ended. The batch doubles until it does not fit; then the gap is halved until it is a sixteenth of the
batch. A twentieth of the largest batch that fits is left as headroom, because a long run takes a little more memory:
workspaces for other shapes, and fragments. Batches are multiples of what grad_accum and pipelines split them into.
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

MAX_BATCH = 1 << 20
RESOLUTION = 16
"""The search ends when the gap to a batch that does not fit is this part of the batch."""
HEADROOM = 1 / 20
PROBE_STEPS = 2


def largest(fits: Callable[[int], bool], unit: int) -> int:
    """Return the largest multiple of `unit` that fits, to a sixteenth of itself; 0 where not even `unit` fits."""
    low, high = 0, unit
    while high <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > max(unit, low // RESOLUTION):
        middle = (low + high) // 2 // unit * unit
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def with_headroom(batch_size: int, unit: int) -> int:
    """Return the batch less its headroom: a multiple of `unit`, and at least `unit`."""
    return max(unit, int(batch_size * (1 - HEADROOM)) // unit * unit)


def fit_batch_size(point: Point, launcher: Launcher, store: Path | None = None) -> Point:
    """Return the point with the largest batch that fits; the same point where its batch is a number.

    `store` is the folder that ranks on other nodes write their results into.

    Raises:
        UserError: no batch fits, or a try failed for another reason than memory.
    """
    spec = point.spec
    if spec.batch_size != "auto":
        return point

    few_steps = {"steps": PROBE_STEPS, "warmup_steps": 1, "ceilings": False, "profile": None}
    short = {
        "data": spec.data.model_copy(update={"staging": "none"}),  # staging takes time and no device memory
        "measure": spec.measure.model_copy(update=few_steps),
    }

    def fits(batch_size: int) -> bool:
        probe = replace(point, spec=spec.model_copy(update={"batch_size": batch_size, **short}))
        attempt = new_attempt(probe, "default", 0, "auto", None)
        with shared_folder(store, launcher, "auto") as folder:
            record, _ = measure(attempt, launcher, folder)
        if record.status not in ("ok", "oom"):
            raise UserError(f"batch_size auto: trying {batch_size} failed: {record.reason}")
        return record.status == "ok"

    largest_batch = largest(fits, spec.batch_unit)
    if not largest_batch:
        raise UserError(f"batch_size auto: not even {spec.batch_unit} samples per rank fit the device's memory")
    batch_size = with_headroom(largest_batch, spec.batch_unit)
    sized = replace(point, spec=spec.model_copy(update={"batch_size": batch_size}))
    reason = why_invalid(sized, machine_of(launcher))
    if reason:
        raise UserError(f"batch_size auto found {batch_size}: {reason}")
    return sized
