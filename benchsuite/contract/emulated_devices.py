"""`device: emulated:...`: what a step takes on accelerators that are not here (no torch).

After `emulated:` stands a time (`180ms`), an accelerator of the YAML file (`a100`: the time of the trial's workload;
`h100/cosmoflow`: that of another), or `from-record ID`, which planning turns into the time that the store has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from benchsuite.contract.errors import UserError, nearest
from benchsuite.contract.yaml_file import parse_yaml

PREFIX = "emulated:"
DEFAULT_AU = 0.9
"""The utilization to keep where MLPerf Storage names none."""
NO_MODEL = "emulated:1us"
"""The device of a trial that measures the loader alone."""
FORMS = "a time such as emulated:180ms, or emulated:from-record ID"
_UNITS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)(?: from-record \S+)?")
RECORD = re.compile(r"from-record (\S+)")


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
    return parse_yaml((files("benchsuite.contract") / "emulated_devices.yaml").read_text(), "emulated_devices.yaml")


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
    if (time and float(time[1]) > 0) or RECORD.fullmatch(asked):
        return
    accelerator, slash, workload = asked.partition("/")
    known = [profile for profile in profiles() if profile.accelerator == accelerator]
    if known and (not slash or workload in {profile.workload for profile in known}):
        return
    choices = [f"{PREFIX}{accelerator}/{profile.workload}" for profile in known] or names()
    allowed = ", ".join([*choices, FORMS])
    raise UserError(f"device {device!r} is unknown{nearest(device, choices)}; allowed: {allowed}")
