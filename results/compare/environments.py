"""Which facts of two environments differ, which of them make their figures incomparable, and which are told first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.results.render.tables import is_missing, names_below
from benchsuite.results.render.words import and_
from benchsuite.results.store.frames import flatten

IDENTITY = frozenset(
    {
        "cores",
        "cpu",
        "data.file_system",
        "devices.name",
        "launcher",
        "libraries.torch",
        "staging.file_system",
    }
)
"""Facts that must be equal for figures to be comparable: what computes, what stores, what trains, what launches.

All others (host, kernel, drivers, commit, versions of other libraries, mounts ...) may drift between nodes and nights:
they are told, and stop nobody.
"""
OF_THE_MOMENT = frozenset(
    {
        "load_average",
        "nodes",
        "planned_world_sizes",
        "data.free_bytes",
        "staging.free_bytes",
        "scheduler.SLURM_JOB_ID",
        "scheduler.SLURM_JOB_NODELIST",
        "scheduler.PBS_JOBID",
        "scheduler.LSB_JOBID",
    }
)
"""Facts that differ between any two trials and are not compared."""
OF_THE_MOMENT_BELOW = ("moment.", "nodes.", "order.")
"""Facts below these differ between any two trials, too."""
JOB_IDS = ("scheduler.SLURM_JOB_ID", "scheduler.PBS_JOBID", "scheduler.LSB_JOBID")


@dataclass(frozen=True)
class Difference:
    """One fact that two environments do not share."""

    fact: str
    """The fact's dotted name, such as libraries.torch."""
    one: Any
    other: Any
    """None where an environment does not tell it."""
    identity: bool
    """Whether it forbids a comparison: a fact of IDENTITY that both tell."""


def is_momentary(fact: str) -> bool:
    """Whether a fact differs between any two trials."""
    return fact in OF_THE_MOMENT or fact.startswith(OF_THE_MOMENT_BELOW)


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The environment in a frame's row: its `env.*` columns without the prefix, and without what is missing."""
    names = names_below("env.", tuple(row))
    return {name.removeprefix("env."): row[name] for name in names if not is_missing(row[name])}


def allocation_of(facts: Mapping[str, Any]) -> str | None:
    """The batch job a trial ran in; None outside of one, or where its scheduler is not known."""
    told = told_of(facts)
    return next((str(told[name]) for name in JOB_IDS if name in told), None)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """The facts in which two environments differ, those that forbid a comparison first, then by name.

    Environments are a record's `env`, nested or with dotted keys. A fact that only one of them tells (records of older
    versions know fewer) is a difference, but never one of identity.
    """
    first, second = told_of(one), told_of(other)
    found = [
        Difference(fact, first.get(fact), second.get(fact), fact in IDENTITY and fact in first and fact in second)
        for fact in {*first, *second}
        if first.get(fact) != second.get(fact) and not is_momentary(fact)
    ]
    return sorted(found, key=lambda difference: (not difference.identity, difference.fact))


def told_of(env: Mapping[str, Any]) -> dict[str, Any]:
    """Every fact by its dotted name; of devices what kinds there are, however many of each."""
    flat = {name.removeprefix("env."): value for name, value in flatten("env", env).items()}
    devices = flat.pop("devices", None)
    if devices is not None and not is_missing(devices):
        devices = [device if isinstance(device, Mapping) else {"name": device} for device in devices]
        flat["devices.name"] = _kinds(devices, "name") or "none"
        flat |= {f"devices.{key}": _kinds(devices, key) for key in ("driver", "memory_bytes") if len(devices)}
        for key in ("vbios", "pcie", "nvlinks"):
            if any(device.get(key) for device in devices):
                flat[f"devices.{key}"] = _kinds(devices, key)
    return {name: value for name, value in flat.items() if not is_missing(value)}


def _kinds(devices: Any, key: str) -> str:
    return ", ".join(sorted({str(device.get(key)) for device in devices}))


MAX_FACTS = 6
"""Facts that are told by name."""
TELLING = ("os", "kernel", "driver", "mount", "client")
"""Words of facts that are told first, after those of identity."""
LIBRARIES = "libraries."


def told_facts(found: Sequence[tuple[str, str]]) -> list[str]:
    """Facts with what is said of each: the most telling first, all libraries as one, and how many more there are."""
    joined: dict[str, list[str]] = {}
    for name, text in sorted(found, key=lambda one: _telling(one[0])):
        key = LIBRARIES if name.startswith(LIBRARIES) else f"{name} {text}"
        joined.setdefault(key, []).append(f"{name.removeprefix(LIBRARIES)} {text}")
    told = [texts[0] if name != LIBRARIES else f"{name}{and_(texts)}" for name, texts in joined.items()]
    return [*told[:MAX_FACTS], *([f"and {len(told) - MAX_FACTS} more"] if len(told) > MAX_FACTS else [])]


def _telling(name: str) -> tuple[bool, bool, bool, str]:
    """Orders facts: of identity, then what reads and drives, the host and libraries last."""
    words = name.replace(".", "_").split("_")
    return name not in IDENTITY, not {*TELLING} & {*words}, name == "host", name
