"""What an emulated device asks of a trial, and step times that are taken from records."""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchsuite.contract.emulated_devices import FORMS, PREFIX, RECORD, profile_of, profiles, step_s
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import TrialSpec, parse_trial
from benchsuite.workloads.spec import ComputeSpec

REAL_DEVICE_ONLY: Mapping[str, Any] = {
    **{name: field.default for name, field in ComputeSpec.model_fields.items()},
    "cpu_binding": "none",
}
"""Fields that are of a model or a real device, with the values that they have on an emulated one."""
SAME_STEP = ("workload", "variant", "model", "rank_batch")
"""What a step's time belongs to."""


def with_step(spec: TrialSpec, store: Path | None = None) -> TrialSpec:
    """The spec with `from-record ID` of its device replaced by the step time of that record, the ID beside it.

    Raises:
        UserError: the store (default: BENCHSUITE_STORE, then ./benchsuite-store) has no such record, several points
            fit, it has no step time, or it is that of another workload, variant, shape or batch.
    """
    asked = RECORD.fullmatch(spec.device.removeprefix(PREFIX))
    if not spec.emulated or not asked:
        return spec
    path = store or Path(os.environ.get("BENCHSUITE_STORE", "benchsuite-store"))
    time = _recorded_step_s(asked[1], path, {name: getattr(spec, name) for name in SAME_STEP})
    return spec.model_copy(update={"device": f"{PREFIX}{time * 1e3:.6g}ms from-record {asked[1]}"})


def _recorded_step_s(prefix: str, path: Path, wanted: Mapping[str, Any]) -> float:
    """The median step time of the ok trials whose record_id, trial_id or point_id begins so, of what is wanted."""
    from benchsuite.results.store.store import ResultsStore

    store = ResultsStore(path)
    found = [
        record
        for record in (store.trials() if store.exists() else [])
        if any(name.startswith(prefix) for name in (record.record_id, record.trial_id, record.point_id))
    ]
    what = f"device {f'{PREFIX}from-record {prefix}'!r}"
    points = sorted({record.point_id for record in found})
    if len(points) != 1:
        why = f"{len(points)} points fit: {', '.join(points[:5])}" if points else f"store {path} has no such record"
        raise UserError(f"{what}: {why}; allowed: a record_id, trial_id or point_id, or its beginning")
    figures = [record.figures for record in found if record.status == "ok"]
    steps = [step for f in figures if (step := f.ceiling_step_s or f.step_s_mean) is not None]
    if not steps:
        raise UserError(f"{what}: no trial of point {points[0]} has a step time; allowed: those of an ok trial")
    recorded = parse_trial(found[0].spec)
    other = [f"{name} {getattr(recorded, name)}" for name in SAME_STEP if getattr(recorded, name) != wanted[name]]
    if other:
        asked = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise UserError(f"{what}: its step is one of {', '.join(other)}; this trial has {asked}; or give a time")
    return median(steps)


def problem(spec: TrialSpec) -> str | None:
    """Why a trial cannot run on its emulated device, with what would; None where it can."""
    layout, device = spec.layout, spec.device
    if spec.data.source != "storage":
        return f"source {spec.data.source} with device {device}: nothing is computed, there is only storage to measure"
    if layout.tp * layout.pp * layout.cp * layout.ep > 1 or layout.zero or layout.name == "data_parallel":
        return f"parallelism {layout.name} with device {device}: there is no model to spread; use none or ddp"
    for name, value in REAL_DEVICE_ONLY.items():
        if getattr(spec, name) not in (value, None):  # None: it is not settled yet
            return f"{name} {getattr(spec, name)} with device {device}: there is no model that it could change"
    known = profile_of(device, spec.workload)
    if step_s(device, spec.workload) is None:
        accelerator = device.removeprefix(PREFIX)
        have = ", ".join(profile.workload for profile in profiles() if profile.accelerator == accelerator)
        return f"device {device}: no step time is published for {spec.workload}, only for {have}; give {FORMS}"
    if known and spec.rank_batch != known.batch_size:
        return (
            f"device {device}: {known.step_s} s is the time of batches of {known.batch_size} of {known.workload}, "
            f"batch_size is {spec.rank_batch}; give {known.batch_size}, or a time such as emulated:180ms"
        )
    return None
