"""What a trial's input could give at best: its loader with no model, and its files to a plain reader.

Both are measured once in a session for all trials that share dataset, loader settings and ranks, by a trial of the same
pipeline whose steps take no time, after the first of them that ended well: so it warms nothing for that one. Its files
are evicted and read plainly after its last step.
"""

from typing import Any

from benchsuite.contract.emulated_devices import NO_MODEL
from benchsuite.grid.emulated_steps import REAL_DEVICE_ONLY
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.host.machine import Machine, this_machine
from benchsuite.results.store.record import TrialRecord

Ceilings = dict[str, dict[str, Any]]
"""What is known of inputs, as figures, by the id of the trial that measured it."""


def without_model(point: Point, machine: Machine | None = None) -> Point | None:
    """The trial of the same pipeline with no model; None where there is no pipeline, or it cannot be run alone.

    Staged copies are not made a second time for it, and its ranks have no device whose cores they could keep to.
    `machine` is what the launcher has; default: this one.
    """
    spec = point.spec
    reads = spec.data.source == "storage" and spec.data.staging == "none"
    if not spec.measure.ceilings or not reads or spec.device == NO_MODEL:
        return None
    if spec.device == "cuda" and spec.data.loader == "dali":
        return None  # it decodes on the device, which a trial without a model has none of
    where = machine or this_machine()
    measure = spec.measure.model_copy(update={"repeats": 1, "warmup_steps": 1, "profile": None})
    ranks = spec.data_ranks
    changed: dict[str, Any] = {
        **REAL_DEVICE_ONLY,
        "device": NO_MODEL,
        "parallelism": "ddp" if ranks > 1 else "none",
        "world_size": ranks,
        "batch_size": spec.rank_batch,
        "global_batch_size": None,
        "ranks_per_node": spec.ranks_per_node or (where.cuda_devices if spec.device == "cuda" else None),
        "measure": measure,
    }
    alone = resolve(spec.model_copy(update=changed), where, ranks, {})
    return None if why_invalid(alone, where) else alone


def of_record(record: TrialRecord) -> dict[str, Any]:
    """What a trial with no model measured, as figures of the trials that share its input; nothing where it failed."""
    if record.status != "ok":
        return {}
    return {
        "loader_only_samples_per_s": record.figures.samples_per_s,
        "storage_ceiling_bytes_per_s": record.figures.storage_ceiling_bytes_per_s,
        "ceilings_record_id": record.record_id,
    }
