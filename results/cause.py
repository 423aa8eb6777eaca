"""Where a slow-down is likely to come from: the parts of the step that grew, verdicts, facts that changed, hosts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from results.environments import differences
from results.history import Night, parts_of
from results.metrics import Metric
from results.record import TrialRecord
from results.report.tables import is_missing

PARTS = ("load_s", "h2d_s", "forward_s", "backward_s", "exchange_s", "bubble_s", "update_s")
LAYERS = {
    "load_s": "input",
    "h2d_s": "copies to the device",
    "forward_s": "compute",
    "backward_s": "compute",
    "exchange_s": "communication",
    "bubble_s": "communication",
    "update_s": "compute",
}
NIGHTS_BEFORE = 8
"""Nights before the step that are its before."""
MIN_GROWTH = 0.2
"""Parts that make less than this share of the growth of all are not told."""
INPUT_VERDICTS = ("storage", "client", "mixed")


@dataclass(frozen=True)
class Grown:
    """A part of the step, in seconds."""

    part: str
    before_s: float
    after_s: float


@dataclass(frozen=True)
class Changed:
    """A fact of the environment that changed with the step."""

    fact: str
    before: Any
    after: Any
    hosts: Sequence[str]
    """Where, if only on some of the hosts; else empty."""


@dataclass(frozen=True)
class Cause:
    """What is known of why; anything may be missing."""

    layer: str | None
    grown: Sequence[Grown]
    """The parts that grew, most first."""
    verdict_before: str | None
    verdict_after: str | None
    changed: Sequence[Changed]
    hosts: Sequence[str]
    """The hosts that are slow, if others of the same nights are as before; else empty."""


def cause_of(before: Sequence[Night], after: Sequence[Night], point: str, metric: Metric) -> Cause:
    """What differs between the nights before a step and those since, for one point."""
    old = [trial for night in before[-NIGHTS_BEFORE:] for trial in night.trials.get(point, ())]
    new = [trial for night in after for trial in night.trials.get(point, ())]
    grown = _grown(old, new)
    verdicts = [_commonest([trial.figures.bottleneck for trial in trials]) for trials in (old, new)]
    slow = _slow_hosts(old, new, metric)
    affected = [trial for trial in new if not slow or host_of(trial) in slow]
    return Cause(
        layer=_layer(grown, verdicts[1]),
        grown=grown,
        verdict_before=verdicts[0],
        verdict_after=verdicts[1],
        changed=_changed(old, affected, {host_of(trial) for trial in new}),
        hosts=slow,
    )


def host_of(trial: TrialRecord) -> str:
    """The host that a trial was launched from."""
    return str(trial.env.get("host") or "unknown")


def _grown(old: Sequence[TrialRecord], new: Sequence[TrialRecord]) -> list[Grown]:
    """Parts that make up the growth of the step."""
    first, second = parts_of(old, PARTS), parts_of(new, PARTS)
    found = [Grown(part, first[part], second[part]) for part in PARTS if None not in (first[part], second[part])]
    total = sum(max(0.0, one.after_s - one.before_s) for one in found)
    told = [one for one in found if total and one.after_s - one.before_s >= MIN_GROWTH * total]
    return sorted(told, key=lambda one: one.before_s - one.after_s)


def _layer(grown: Sequence[Grown], verdict: str | None) -> str | None:
    if not grown:
        return None
    layer = LAYERS[grown[0].part]
    return verdict if layer == "input" and verdict in INPUT_VERDICTS else layer


def _commonest(names: Sequence[str | None]) -> str | None:
    told = [name for name in names if name is not None]
    return max(told, key=told.count) if told else None


def _slow_hosts(old: Sequence[TrialRecord], new: Sequence[TrialRecord], metric: Metric) -> list[str]:
    """Hosts nearer to the worst host's level than to that before, if there are others."""
    usual = _level(old, metric)
    levels = {host: _level([t for t in new if host_of(t) == host], metric) for host in {host_of(t) for t in new}}
    known = {host: level - usual for host, level in levels.items() if level is not None and usual is not None}
    worst = max(known.values(), default=0.0)
    slow = sorted(host for host, shift in known.items() if shift > worst / 2)
    return slow if worst > 0 and len(slow) < len(known) else []


def _level(trials: Sequence[TrialRecord], metric: Metric) -> float | None:
    values = [getattr(trial.figures, metric.name) for trial in trials]
    logs = [metric.sign * math.log(value) for value in values if not is_missing(value) and value > 0]
    return median(logs) if logs else None


def _changed(old: Sequence[TrialRecord], new: Sequence[TrialRecord], hosts: set[str]) -> list[Changed]:
    """Facts whose values since the step were not there before it, by the last trial of each host."""
    found: dict[tuple[str, str, str], set[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    latest = {host_of(trial): trial for trial in new}
    for host, trial in latest.items():
        same = [earlier for earlier in old if host_of(earlier) == host]
        if not old:
            continue
        for one in differences((same or old)[-1].env, trial.env):
            if one.fact == "host" and same:
                continue
            key = (one.fact, str(one.one), str(one.other))
            found.setdefault(key, set()).add(host)
            values[key] = (one.one, one.other)
    return [
        Changed(key[0], *values[key], sorted(where) if where != hosts else ())
        for key, where in sorted(found.items(), key=lambda item: item[0])
    ]
