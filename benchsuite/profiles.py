"""`device: emulated:...`: what a step takes on accelerators that are not here (no torch).

After `emulated:` stands a time (`180ms`), an accelerator of profiles.yaml (`a100`: the time of the trial's workload;
`h100/cosmoflow`: that of another), or `from-record ID`, which planning turns into the time that the store has.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchsuite.errors import UserError, nearest
from benchsuite.yamlfile import parse_yaml
from workloads.spec import ComputeSpec

if TYPE_CHECKING:
    from benchsuite.spec import TrialSpec

PREFIX = "emulated:"
NO_MODEL = "emulated:1us"
"""The device of a trial that measures the loader alone."""
FORMS = "a time such as emulated:180ms, or emulated:from-record ID"
SAME_STEP = ("workload", "variant", "rank_batch")
"""What a step's time belongs to."""
_UNITS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)(?: from-record \S+)?")
_RECORD = re.compile(r"from-record (\S+)")


@dataclass(frozen=True)
class Profile:
    """A published step time: of which workload, on what, for how many samples, and by whom."""

    workload: str
    accelerator: str
    step_s: float
    batch_size: int
    record_bytes: int
    source: str


@cache
def _table() -> dict[str, Any]:
    return parse_yaml((files("benchsuite") / "profiles.yaml").read_text(), "profiles.yaml")


@cache
def profiles() -> tuple[Profile, ...]:
    """Every published profile; `source` in words."""
    table = _table()
    return tuple(Profile(**{**entry, "source": table["sources"][entry["source"]]}) for entry in table["profiles"])


def min_au(workload: str) -> float | None:
    """The utilization that MLPerf Storage asks for; None where it has no such workload."""
    known: float | None = _table()["min_au"].get(workload)
    return known


def published(device: str, workload: str) -> dict[str, Any]:
    """What MLPerf Storage says of a workload: its threshold, and the profile that a device names."""
    known = profile_of(device, workload)
    name = known.workload if known else workload
    record_bytes = next((profile.record_bytes for profile in profiles() if profile.workload == name), None)
    return {"workload": name, "min_au": min_au(name), "record_bytes": record_bytes, "profile": known is not None}


def names() -> list[str]:
    """The accelerators that have profiles, as devices."""
    return list(dict.fromkeys(f"{PREFIX}{profile.accelerator}" for profile in profiles()))


def is_emulated(device: str) -> bool:
    """Whether a device is one that is not here."""
    return device.startswith(PREFIX)


def profile_of(device: str, workload: str) -> Profile | None:
    """The profile that a device names for a workload; None where there is none, or the device is a time."""
    accelerator, _, other = device.removeprefix(PREFIX).partition("/")
    wanted = (other or workload, accelerator)
    return next((known for known in profiles() if (known.workload, known.accelerator) == wanted), None)


def step_s(device: str, workload: str) -> float | None:
    """Seconds a step takes on an emulated device; None where that is not known (yet)."""
    time = _TIME.fullmatch(device.removeprefix(PREFIX))
    if time:
        return float(time[1]) * _UNITS[time[2]]
    known = profile_of(device, workload)
    return known.step_s if known else None


def check_device(device: str) -> None:
    """Refuse what is no emulated device.

    Raises:
        UserError: what was given, what is allowed, and the nearest name.
    """
    asked = device.removeprefix(PREFIX)
    time = _TIME.fullmatch(asked)
    if (time and float(time[1]) > 0) or _RECORD.fullmatch(asked):
        return
    accelerator, slash, workload = asked.partition("/")
    known = [profile for profile in profiles() if profile.accelerator == accelerator]
    if known and (not slash or workload in {profile.workload for profile in known}):
        return
    choices = [f"{PREFIX}{accelerator}/{profile.workload}" for profile in known] or names()
    allowed = ", ".join([*choices, FORMS])
    raise UserError(f"device {device!r} is unknown{nearest(device, choices)}; allowed: {allowed}")


def with_step(spec: "TrialSpec", store: Path | None = None) -> "TrialSpec":
    """The spec with `from-record ID` of its device replaced by the step time of that record, the ID beside it.

    Raises:
        UserError: the store (default: BENCHSUITE_STORE, then ./benchsuite-store) has no such record, several points
            fit, it has no step time, or it is that of another workload, variant or batch.
    """
    asked = _RECORD.fullmatch(spec.device.removeprefix(PREFIX))
    if not spec.emulated or not asked:
        return spec
    path = store or Path(os.environ.get("BENCHSUITE_STORE", "benchsuite-store"))
    time = _recorded_step_s(asked[1], path, {name: getattr(spec, name) for name in SAME_STEP})
    return spec.model_copy(update={"device": f"{PREFIX}{time * 1e3:.6g}ms from-record {asked[1]}"})


def _recorded_step_s(prefix: str, path: Path, wanted: Mapping[str, Any]) -> float:
    """The median step time of the ok trials whose record_id, trial_id or point_id begins so, of what is wanted."""
    from benchsuite.spec import parse_trial
    from results.store import ResultsStore

    store = ResultsStore(path)
    found = [
        record
        for record in (store.latest() if store.exists() else [])
        if record.kind == "trial"
        and any(name.startswith(prefix) for name in (record.record_id, record.trial_id, record.point_id))
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


def problem(spec: "TrialSpec") -> str | None:
    """Why a trial cannot run on its emulated device, with what would; None where it can."""
    layout, device = spec.layout, spec.device
    if spec.data.source != "storage":
        return f"source {spec.data.source} with device {device}: nothing is computed, there is only storage to measure"
    if layout.tp * layout.pp * layout.ep > 1 or layout.zero or layout.name == "data_parallel":
        return f"parallelism {layout.name} with device {device}: there is no model to spread; use none or ddp"
    for name, field in ComputeSpec.model_fields.items():
        if getattr(spec, name) != field.default:
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
