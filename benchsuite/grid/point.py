"""A point of a sweep, one that is skipped with the reason why, and the plan that holds both."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.contract.trial_spec import SweepSpec, TrialSpec
from benchsuite.host.machine import Machine
from benchsuite.storage.dataset.manifest import Manifest
from benchsuite.workloads.layout import degree_words


@dataclass(frozen=True)
class Point:
    """A resolved spec, its id, its dataset, and the values that vary in its sweep."""

    spec: TrialSpec
    point_id: str
    dataset: Path | None
    manifest: Manifest | None
    varied: Mapping[str, Any]
    order: int = 0
    """Position in the sweep."""

    @property
    def label(self) -> str:
        """The varied values in words; where nothing varies, the workload, and the engine that is not torch."""
        words = [_word(key, value) for key, value in self.varied.items()]
        engine = getattr(self.spec.parallelism, "engine", "torch")  # a mode by its name is torch's
        alone = [_word("workload", self.spec.workload), *([engine] if engine != "torch" else [])]
        return " ".join(filter(None, words)) or " ".join(alone)


@dataclass(frozen=True)
class Skipped:
    """A point that cannot run, and why."""

    point: Point
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a sweep file asks for on this machine."""

    sweep: SweepSpec
    points: list[Point]
    skipped: list[Skipped]
    duplicates: int
    machine: Machine | None = None
    """What it was made for."""


def _word(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    if key == "parallelism":
        words = degree_words(value) if isinstance(value, Mapping) else str(value)
        return "" if words == "none" else words
    if isinstance(value, Mapping):
        return " ".join(name if inner is True else f"{name} {inner}" for name, inner in value.items())
    if key == "workload":
        return str(value).rpartition("/")[2]
    if value is None:
        return f"{name} none"
    unit = {"world_size": "rank", "num_workers": "worker"}.get(name)
    if unit is None:
        return f"{name} {value}" if isinstance(value, int | float) else str(value)
    return f"{value} {unit}" if value == 1 else f"{value} {unit}s"
