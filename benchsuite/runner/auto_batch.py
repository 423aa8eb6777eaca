"""`batch_size: auto`: the largest batch per data-parallel rank that fits the device, found by trying.

Each try is a short trial of the point itself, with its loader, in processes of its own: where one rank runs out of
memory the others are ended. The batch doubles until it does not fit, then the gap is halved until it is a sixteenth. Of
the largest that fits a twentieth is left as headroom, since what a long run takes grows a little: workspaces of other
shapes, fragments. Batches are multiples of what grad_accum and pipelines cut them into.
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
"""The batch found is within this part of itself of the largest."""
HEADROOM = 1 / 20
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


def with_headroom(found: int, unit: int) -> int:
    """The batch less its headroom: a multiple of `unit`, at least that."""
    return max(unit, int(found * (1 - HEADROOM)) // unit * unit)


def fitted(point: Point, launcher: Launcher, store: Path | None = None) -> Point:
    """The point with the largest batch that fits; as it is where its batch is given.

    `store` is where ranks on other nodes leave what they found.

    Raises:
        UserError: no batch fits, or a try failed for another reason than memory.
    """
    spec = point.spec
    if spec.batch_size != "auto":
        return point

    measured = {"steps": PROBE_STEPS, "warmup_steps": 1, "ceilings": False, "profile": None}
    short = {
        "data": spec.data.model_copy(update={"staging": "none"}),  # copies take time and no device memory
        "measure": spec.measure.model_copy(update=measured),
    }

    def fits(batch_size: int) -> bool:
        probe = replace(point, spec=spec.model_copy(update={"batch_size": batch_size, **short}))
        attempt = new_attempt(probe, "default", 0, "auto", None)
        with shared_folder(store, launcher, "auto") as folder:
            record, _ = measure(attempt, launcher, folder)
        if record.status not in ("ok", "oom"):
            raise UserError(f"batch_size auto: trying {batch_size} failed: {record.reason}")
        return record.status == "ok"

    found = largest(fits, spec.batch_unit)
    if not found:
        raise UserError(f"batch_size auto: not even {spec.batch_unit} samples a rank fit the device's memory")
    batch_size = with_headroom(found, spec.batch_unit)
    sized = replace(point, spec=spec.model_copy(update={"batch_size": batch_size}))
    reason = why_invalid(sized, machine_of(launcher))
    if reason:
        raise UserError(f"batch_size auto found {batch_size}: {reason}")
    return sized
