"""What has run on several GPUs: by the list in several_gpus.yaml, and by this machine's own `make gpu-accept`.

Names are those of modes (`ddp`), engines (`deepspeed`), schedules of pipelines (`schedule interleaved`), and
`several nodes`.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from benchsuite.results.render.tables import Row, is_missing, is_number
from benchsuite.results.render.words import counted
from benchsuite.results.store.replacing import write_whole

UNTESTED = "untested on several GPUs"
SEVERAL_NODES = "several nodes"
BY_ZERO = ("ddp", "zero1", "zero2", "fsdp")
"""Data-parallel modes by what of ZeRO they shard."""
DEGREES = ("tp", "pp", "cp", "ep")
PREFIX = "spec.parallelism."


@dataclass(frozen=True)
class Ran:
    """What has run on several GPUs, when and where."""

    what: str
    date: str
    machine: str


@dataclass(frozen=True)
class Accepted:
    """What `make gpu-accept` has found on this machine."""

    benchsuite: str
    """The version that it ran."""
    devices: tuple[str, ...]
    """Names of the devices."""
    date: str
    passed: tuple[str, ...]


ACCEPTED = TypeAdapter(Accepted)


@cache
def ran() -> tuple[Ran, ...]:
    """The list of what has run."""
    found = yaml.safe_load((files("benchsuite.results.report") / "several_gpus.yaml").read_text(encoding="utf-8"))
    return tuple(Ran(entry["what"], str(entry["date"]), entry["machine"]) for entry in found["ran"])


def acceptance_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user keeps what `make gpu-accept` has found."""
    home = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "benchsuite" / "gpu-accept.json"


def keep(found: Accepted) -> Path:
    """Keep what `make gpu-accept` has found in the place of what it found before; returns where."""
    path = acceptance_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(found), indent=1))
    return path


def passed(devices: Collection[str], version: str) -> set[str]:
    """What this version has passed by `make gpu-accept` on devices of these names; nothing where it has not run."""
    try:
        found = ACCEPTED.validate_json(acceptance_path().read_bytes())
    except (OSError, ValueError):
        return set()
    return set(found.passed) if found.benchsuite == version and set(devices) <= set(found.devices) else set()


def untested(names: Iterable[str], devices: Collection[str], version: str) -> list[str]:
    """Those of some names that neither the list has nor this machine has passed, in their order."""
    known = {one.what for one in ran()} | passed(devices, version)
    return [name for name in dict.fromkeys(names) if name not in known]


def features(parallelism: str | Mapping[str, Any], nodes: int = 1) -> list[str]:
    """What a mode, by its name or its degrees, takes part in on so many nodes."""
    where = [SEVERAL_NODES] if nodes > 1 else []
    if isinstance(parallelism, str):
        return [*([] if parallelism == "none" else [parallelism]), *_schedule(parallelism == "pp", {}), *where]
    sizes = {name: int(parallelism.get(name) or 1) for name in (*DEGREES, "dp", "dp_replicate")}
    engine, zero = parallelism.get("engine") or "torch", int(parallelism.get("zero") or 0)
    sharded = ["hsdp"] if sizes["dp_replicate"] > 1 else [BY_ZERO[min(zero, 3)]] if zero or sizes["dp"] > 1 else []
    split = [name for name in DEGREES if sizes[name] > 1]
    own = sharded if engine == "torch" else [str(engine)]
    return [*own, *split, *_schedule("pp" in split, parallelism), *where]


def _schedule(is_pipeline: bool, parallelism: Mapping[str, Any]) -> list[str]:
    return [f"schedule {parallelism.get('schedule') or '1f1b'}"] if is_pipeline else []


def features_of(row: Row) -> list[str]:
    """What a trial or point on several GPUs takes part in; empty of one that is on one GPU, on CPUs or emulated."""
    if row.get("spec.device") != "cuda" or row.get("status") == "skipped":
        return []
    nodes, ranks = row.get("env.nodes"), row.get("spec.world_size")
    many = is_number(ranks) and float(ranks or 0) > 1
    degrees = {key.removeprefix(PREFIX): row[key] for key in row if key.startswith(PREFIX) and not is_missing(row[key])}
    mode = row.get("spec.parallelism") or degrees
    several = many or (mode == "data_parallel" and len(_devices(row)) > 1)
    if not several or is_missing(mode):
        return []
    return features(mode, len(nodes) if isinstance(nodes, list) else 1)


def _devices(row: Row) -> list[str]:
    found = row.get("env.devices")
    return [str(one.get("name")) for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def remark(points: Sequence[Row]) -> list[str]:
    """A line below points that ran on several GPUs by what is untested there; none where there is no such point."""
    names: dict[str, None] = {}
    count = 0
    for row in points:
        found = untested(features_of(row), _devices(row), str(row.get("env.benchsuite")))
        names.update(dict.fromkeys(found))
        count += bool(found)
    if not names:
        return []
    where = f"{UNTESTED}: {', '.join(names)} (of {counted(count, 'point')})"
    return [f"{where}: check these figures in another way, or run `make gpu-accept` on this machine"]
