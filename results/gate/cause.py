"""Where a slow-down is likely to come from: the parts of the step that grew, verdicts, facts that changed, hosts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchsuite.results.compare.environments import Difference, differences
from benchsuite.results.compare.metrics import Metric
from benchsuite.results.compare.nights import Night, parts_of
from benchsuite.results.render.tables import is_missing
from benchsuite.results.store.record import Record

LAYERS = {
    "load_s": "input",
    "h2d_s": "copies to the device",
    "forward_s": "compute",
    "backward_s": "compute",
    "communication_s": "communication",
    "bubble_s": "communication",
    "optimizer_s": "compute",
}
PARTS = tuple(LAYERS)
NIGHTS_BEFORE = 8
"""Nights before the step that are its before."""
MIN_GROWTH = 0.2
"""Parts that make less than this share of the growth of all are not told."""
INPUT_VERDICTS = ("storage", "preprocessing", "client_cpu", "mixed")


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
    """Where, if only on some of the hosts of the nights since; else empty."""


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
    verdicts = [_commonest([trial.figures.get("bottleneck") for trial in trials]) for trials in (old, new)]
    slow = _slow_hosts(old, new, metric)
    return Cause(
        layer=_layer(grown, verdicts[1]),
        grown=grown,
        verdict_before=verdicts[0],
        verdict_after=verdicts[1],
        changed=_changed(old, new, slow, before, after),
        hosts=slow,
    )


def hosts_of(trial: Record) -> dict[str, Mapping[str, Any]]:
    """The facts of each host that a trial ran on; of records that do not tell them by node, of the first alone."""
    told = [node["facts"] for node in trial.env.get("nodes") or () if "facts" in node]
    found = [{**trial.env, **facts} for facts in told] or [trial.env]
    return {str(facts.get("host") or "unknown"): facts for facts in found}


def _grown(old: Sequence[Record], new: Sequence[Record]) -> list[Grown]:
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


def _slow_hosts(old: Sequence[Record], new: Sequence[Record], metric: Metric) -> list[str]:
    """Hosts nearer to the worst host's level than to that before, if there are others.

    A trial on several hosts counts for each of them.
    """
    usual, by_host = _level(old, metric), _by_host(new)
    levels = {host: _level([trial for trial, _ in found], metric) for host, found in by_host.items()}
    known = {host: level - usual for host, level in levels.items() if level is not None and usual is not None}
    worst = max(known.values(), default=0.0)
    slow = sorted(host for host, shift in known.items() if shift > worst / 2)
    return slow if worst > 0 and len(slow) < len(known) else []


Seen = tuple[Record, Mapping[str, Any]]
"""A trial, and the facts of one of its hosts."""


def _by_host(trials: Sequence[Record]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for trial in trials:
        for host, facts in hosts_of(trial).items():
            found.setdefault(host, []).append((trial, facts))
    return found


def _level(trials: Sequence[Record], metric: Metric) -> float | None:
    values = [trial.figures.get(metric.name) for trial in trials]
    logs = [metric.sign * math.log(value) for value in values if not is_missing(value) and value > 0]
    return median(logs) if logs else None


def _changed(
    old: Sequence[Record],
    new: Sequence[Record],
    slow: Sequence[str],
    before: Sequence[Night],
    after: Sequence[Night],
) -> list[Changed]:
    """Facts whose values since the step were not there before it, by the last trial of each (slow) host.

    Hosts that the point did not run on are asked by trials of other points whether the same changed there.
    """
    if not old:
        return []
    found = _differences(_by_host(old), _by_host(new), next(reversed(hosts_of(old[-1]).values())))
    everywhere = _by_host(_trials(after))
    rest = {host: seen for host, seen in everywhere.items() if host not in found}
    all_found = found | _differences(_by_host(_trials(before[-NIGHTS_BEFORE:])), rest, None)
    told = {key: one for host in slow or found for key, one in found[host].items()}
    where = {key: sorted(host for host, changed in all_found.items() if key in changed) for key in told}
    return [
        Changed(one.fact, one.one, one.other, where[key] if len(where[key]) < len(everywhere) else ())
        for key, one in sorted(told.items(), key=lambda item: item[0])
    ]


def _trials(nights: Sequence[Night]) -> list[Record]:
    return [trial for night in nights for found in night.trials.values() for trial in found]


Key = tuple[str, str, str]


def _differences(
    before: Mapping[str, Sequence[Seen]], after: Mapping[str, Sequence[Seen]], usual: Mapping[str, Any] | None
) -> dict[str, dict[Key, Difference]]:
    """What changed on each host, against its last trial before, of the same point if there is one.

    What changed later than the first trial after explains no step. Hosts that are new are held against `usual`, where
    given.
    """
    found: dict[str, dict[Key, Difference]] = {}
    for host, seen in after.items():
        trial, facts = seen[-1]
        earlier = before.get(host, ())
        alike = [facts for one, facts in earlier if one.point_id == trial.point_id] or [facts for _, facts in earlier]
        first = alike[-1] if alike else usual
        changed = [] if first is None else differences(first, facts)
        at_once = set() if first is None else {one.fact for one in differences(first, seen[0][1])}
        told = [one for one in changed if one.fact in at_once and (one.fact != "host" or not alike)]
        found[host] = {(one.fact, str(one.one), str(one.other)): one for one in told}
    return found
