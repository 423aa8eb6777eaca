"""The most that a trial's input can give: through its loader with no model, and to a plain reader of its files.

A trial of the same pipeline whose steps take no time measures both, once per session for all trials that share dataset,
loader settings and ranks. It runs after the first of them that ended well, so it warms no cache for that one. Its files
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
"""Figures of inputs, by the id of the trial that measured them."""


def without_model(point: Point, machine: Machine | None = None) -> Point | None:
    """Return the trial of the same pipeline with no model; None where there is no pipeline, or it cannot run alone.

    Staged data have none, because copies are not made a second time. The ranks of this trial have no device whose cores
    they could keep to. `machine` is what the launcher has; None means this machine.
    """
    spec = point.spec
    reads = spec.data.source == "storage" and spec.data.staging == "none"
    if not spec.measure.ceilings or not reads or spec.device == NO_MODEL:
        return None
    if spec.device == "cuda" and spec.data.loader == "dali":
        return None  # DALI decodes on the device, and a trial with no model has none
    machine = machine or this_machine()
    measure = spec.measure.model_copy(update={"repeats": 1, "warmup_steps": 1, "profile": None})
    ranks = spec.data_ranks
    settings: dict[str, Any] = {
        **REAL_DEVICE_ONLY,
        "device": NO_MODEL,
        "parallelism": "ddp" if ranks > 1 else "none",
        "world_size": ranks,
        "batch_size": spec.rank_batch,
        "global_batch_size": None,
        "ranks_per_node": spec.ranks_per_node or (machine.cuda_devices if spec.device == "cuda" else None),
        "measure": measure,
    }
    loader_alone = resolve(spec.model_copy(update=settings), machine, ranks, {})
    return None if why_invalid(loader_alone, machine) else loader_alone


def ceiling_figures(record: TrialRecord) -> dict[str, Any]:
    """Return what a trial with no model measured, as figures of trials that share its input; empty where it failed."""
    if record.status != "ok":
        return {}
    return {
        "loader_only_samples_per_s": record.figures.samples_per_s,
        "storage_ceiling_bytes_per_s": record.figures.storage_ceiling_bytes_per_s,
        "ceilings_record_id": record.record_id,
    }
