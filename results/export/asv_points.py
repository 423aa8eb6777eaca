"""Sweeps as benchmarks of airspeed velocity (asv): their parameters, and what each point gave.

A sweep is the benchmark class `sweeps.<name>`, parametrized by workload, format and ranks. asv takes larger for worse:
what is good when large is tracked as what is missing to 1.
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchsuite.results.render.naming import degrees, last_part
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.record import READ_BEFORE, TrialRecord

VERSION = "1"
"""asv drops what was measured under another version; raise it when a metric's definition changes."""
PARAM_NAMES = ("workload", "format", "ranks")
UNITS: Mapping[str, str] = {
    "track_seconds_per_sample": "seconds",
    "track_one_minus_au": "1 - AU",
    "track_one_minus_efficiency": "1 - efficiency",
    "track_peak_memory": "bytes",
}
"""What is tracked of every sweep, and its unit. Seconds are wall time over samples of all ranks."""
EXPORTED = "benchsuite-sweeps.jsonl"
"""The file in asv's results with the parameters of exported sweeps, which `asv run` then lists too.

asv reads any `.json` there.
"""
DIGITS = 4
"""asv prints every digit of a fraction."""
FAILED = ("failed", "oom", "timeout")
NOT_A_SETTING = re.compile(
    r"workload|world_size|threads_per_rank|data\.(format|reader|source|root|staging_dir)"
    r"|measure\.(repeats|timeout_s|profile|ceilings)"
)
"""What tells no points apart, besides the parameters themselves."""


class Key(NamedTuple):
    """The parameters of a point."""

    workload: str
    format: str
    """How samples are stored, or `memory`, `synthetic`; with the reader, and the other settings that vary in the sweep.

    Our own reader is not named: it read all that was measured before there was another.
    """
    ranks: int


@dataclass(frozen=True)
class Measured:
    """What a point gave: a value of each metric, NaN where it has none; or why it failed."""

    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


Axes = tuple[list[str], list[str], list[int]]
"""The values of each parameter; asv's benchmarks are their product."""


def class_name(sweep: str) -> str:
    """The benchmark class of a sweep: asv's names hold no `-` and no `.`."""
    return re.sub(r"\W", "_", sweep)


def axes_of(keys: Iterable[Key]) -> Axes:
    """The values of each parameter, each once, in their order."""
    found = [list(dict.fromkeys(values)) for values in zip(*keys, strict=True)] or [[], [], []]
    return found[0], found[1], sorted(found[2])


def _plain_key(spec: Mapping[str, Any]) -> Key:
    data = spec.get("data") or {}
    source, reader = data.get("source", "storage"), data.get("reader")
    stored = str(data.get("format", "files"))
    stored = stored if reader in (None, READ_BEFORE) else f"{stored} {last_part(reader)}"
    return Key(str(spec["workload"]), stored if source == "storage" else source, int(spec.get("world_size") or 1))


def keys_of(specs: Sequence[Mapping[str, Any]]) -> list[Key]:
    """The key of each resolved spec of one sweep.

    Where specs share workload, format and ranks, what else differs between any of the workload's is named with format.
    """
    plain = [_plain_key(spec) for spec in specs]
    flats = [_settings(spec) for spec in specs]
    varied: dict[str, dict[str, None]] = {}
    first: dict[Key, dict[str, Any]] = {}
    for key, flat in zip(plain, flats, strict=True):
        other = first.setdefault(key, flat)
        names = [name for name in (*flat, *other) if flat.get(name) != other.get(name)]
        varied.setdefault(key.workload, {}).update(dict.fromkeys(names))
    return [_with_settings(key, flat, varied[key.workload]) for key, flat in zip(plain, flats, strict=True)]


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What may tell points apart besides workload, format and ranks, flat."""
    asked = spec.get("parallelism")
    flat = flatten("", {**spec, "parallelism": degrees(asked) if isinstance(asked, Mapping) else asked})
    return {name: value for name, value in flat.items() if not NOT_A_SETTING.fullmatch(name)}


def _with_settings(key: Key, flat: Mapping[str, Any], names: Iterable[str]) -> Key:
    words = [f"{name}={flat[name]}" for name in names if flat.get(name) is not None]
    return key._replace(format=" ".join([key.format, *words]))


def measured(trials: Sequence[TrialRecord]) -> dict[Key, Measured]:
    """What each point of a sweep gave: medians over its ok repeats; over the trustworthy ones where there are any.

    A point without an ok repeat failed, or was skipped and has no values. One that was only interrupted is left out.
    """
    points: dict[Key, list[TrialRecord]] = {}
    for key, trial in zip(keys_of([trial.spec for trial in trials]), trials, strict=True):
        points.setdefault(key, []).append(trial)
    points = {key: _trusted(repeats) for key, repeats in points.items()}
    found: dict[Key, Measured] = {}
    for key, repeats in points.items():
        ok = [trial for trial in repeats if trial.status == "ok"]
        failed = [trial for trial in repeats if trial.status in FAILED]
        if ok:
            found[key] = Measured(_values(ok) | {"track_one_minus_efficiency": _efficiency_lost(key, points)})
        elif failed:
            found[key] = Measured(failure=f"{failed[-1].status}: {failed[-1].reason}")
        elif any(trial.status == "skipped" for trial in repeats):
            found[key] = Measured(dict.fromkeys(UNITS, math.nan))
    return found


def _trusted(repeats: list[TrialRecord]) -> list[TrialRecord]:
    """The ok repeats without a caveat that forbids trust; all repeats where there are none."""
    from benchsuite.results.compare.nights import DISTRUSTED

    return [trial for trial in repeats if trial.status == "ok" and not DISTRUSTED & {*trial.caveats}] or repeats


def _values(ok: Sequence[TrialRecord]) -> dict[str, float]:
    rate, au, memory = (_median(ok, name) for name in ("samples_per_s", "au", "peak_memory_bytes"))
    return {
        "track_seconds_per_sample": 1 / rate if rate else math.nan,
        "track_one_minus_au": round(1 - au, DIGITS),
        "track_peak_memory": memory,
    }


def _median(trials: Sequence[TrialRecord], figure: str) -> float:
    from benchsuite.results.compare.nights import is_result

    values = [getattr(trial.figures, figure) for trial in trials if is_result(trial, figure)]
    known = [value for value in values if value is not None]
    return float(median(known)) if known else math.nan


def _efficiency_lost(key: Key, points: Mapping[Key, Sequence[TrialRecord]]) -> float:
    """1 - P(N) / (P(N0) N / N0), N0 the fewest ranks with a rate; NaN at N0, and where cores were oversubscribed."""
    from benchsuite.results.scaling.efficiency import efficiency
    from benchsuite.results.scaling.series import EXCLUDED

    rates: dict[int, list[float]] = {}
    for other, trials in points.items():
        counted = [trial for trial in trials if trial.status == "ok" and not EXCLUDED & {*trial.caveats}]
        known = [rate for trial in counted if (rate := trial.figures.samples_per_s)]
        if known and other._replace(ranks=key.ranks) == key:
            rates[other.ranks] = known
    baseline = min(rates, default=key.ranks)
    if key.ranks == baseline or key.ranks not in rates:
        return math.nan
    return round(1 - efficiency({None: rates[key.ranks]}, {None: rates[baseline]}, key.ranks, baseline), DIGITS)


def exported_axes(results_dir: Path) -> dict[str, Axes]:
    """The parameters of every exported sweep, by its benchmark class."""
    path = results_dir / EXPORTED
    lines = path.read_text().splitlines() if path.is_file() else []
    found: dict[str, list[Key]] = {}
    for entry in map(json.loads, filter(None, lines)):
        keys = itertools.product(*(entry[name] for name in PARAM_NAMES))
        found.setdefault(entry["sweep"], []).extend(Key(*values) for values in keys)
    return {name: axes_of(keys) for name, keys in found.items()}
