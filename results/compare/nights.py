"""A store by date: sessions in time order, and of each point one value a night."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from benchsuite.results.compare.metrics import Array, Metric
from benchsuite.results.render.tables import is_missing
from benchsuite.results.store.frames import FAILED, Row
from benchsuite.results.store.record import DONE_BEFORE, READ_BEFORE, Kind, Record

PATHS = ("root", "staging_dir")
"""Settings of `spec.data` that differ between sites and change nothing of what is measured."""
READER = "data.reader"
WITHOUT_IDENTITY = ("repeats", "timeout_s", "profile", "ceilings")
"""Settings of `spec.measure` that change nothing either."""
UNLIKE_STATE = {"not_cold", "not_warm", "not_direct", "counters_disagree"}
DISTRUSTED = frozenset({"oversubscribed", "foreign_load", "not_steady", "traced"} | UNLIKE_STATE)
"""Caveats with which a figure is no evidence of a change, unless all of the other side bears the same."""
NO_RESULT = {"au": "au_above_one"}
"""The caveat with which a figure is no result at all; the trial's others are."""


def point_key(record: Record) -> str:
    """What a point measures, wherever its files lie: its spec without paths, and its dataset's id.

    A batch that was asked for and the same batch found by `batch_size: auto` are two points.
    """
    if record.match_id is not None:
        return f"{record.match_id}{'-resized' if was_resized(record) else ''}"
    return _digest(record, (), resized=was_resized(record))


def former_key(record: Record) -> str | None:
    """The key of the same settings before what they measure was revised; None where it was not."""
    if record.former_match_id is None:
        return None
    return f"{record.former_match_id}{'-resized' if was_resized(record) else ''}"


def loose_key(record: Record) -> str:
    """What a point measures, whatever its batch, its revision and whoever reads; else as `point_key`."""
    return _digest(record, ("batch_size", "global_batch_size", READER), resized=False)


def key_without(record: Record, columns: Sequence[str]) -> str:
    """What a point measures but for some columns of its spec; with one of its data goes the dataset's id."""
    names = [column.removeprefix("spec.") for column in columns]
    return _digest(record, names, resized=was_resized(record))


def reader_of(record: Record) -> str | None:
    """Who reads the samples; None where nothing is read."""
    data = record.spec.get("data")
    return data.get("reader") if isinstance(data, Mapping) else None


def was_resized(record: Record) -> bool:
    """Whether its batch was found, not asked for."""
    return record.env.get("batch_size_asked") == "auto" or "resized" in record.caveats


def _digest(record: Record, left_out: Sequence[str], resized: bool) -> str:
    spec = {name: value for name, value in record.spec.items() if value is not None and name not in left_out}
    for part, _, name in (column.partition(".") for column in left_out):
        if isinstance(spec.get(part), Mapping):
            spec[part] = {k: v for k, v in spec[part].items() if k != name}
    for part, names in (("data", PATHS), ("measure", WITHOUT_IDENTITY)):
        if isinstance(spec.get(part), Mapping):
            spec[part] = {k: v for k, v in spec[part].items() if k not in names and v is not None}
    for name, before in DONE_BEFORE.items():  # records from before these settings did not name them
        part, _, inner = name.rpartition(".")
        held = spec.get(part) if part else spec
        if isinstance(held, dict) and held.get(inner) == before:
            del held[inner]
    if reader_of(record) == READ_BEFORE:  # nor did records from before there was another name it
        spec["data"] = {k: v for k, v in spec["data"].items() if k != "reader"}
    other_data = any(column.startswith("data.") and column != READER for column in left_out)
    dataset_id = None if other_data else (record.dataset or {}).get("dataset_id")
    told = {"spec": spec, "dataset_id": dataset_id, "resized": resized}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Night:
    """One session."""

    session: str
    date: str
    """The beginning of its first record, as ISO."""
    trials: Mapping[str, Sequence[Record]]
    """The ok ones by point key."""
    failed: Mapping[str, Record] = field(default_factory=dict)
    """Points without an ok trial, with the last that failed."""
    skipped: Mapping[tuple[str, str], Record] = field(default_factory=dict)
    """What was skipped, by sweep and label: a point that lacks its dataset has another key."""


@dataclass(frozen=True)
class Point:
    """One point over all nights."""

    key: str
    label: str


def nights_of(records: Iterable[Record], kind: Kind = "trial") -> list[Night]:
    """The sessions that measured anything of a kind, failed to or skipped it, in the order in which they began."""
    found: dict[str, dict[str, list[Record]]] = {}
    failed: dict[str, dict[str, Record]] = {}
    skipped: dict[str, dict[tuple[str, str], Record]] = {}
    begun: dict[str, str] = {}
    for record in records:
        if record.kind != kind or "traced" in record.caveats:
            continue
        if record.status == "ok":
            found.setdefault(record.session, {}).setdefault(point_key(record), []).append(record)
        elif record.status in FAILED:
            failed.setdefault(record.session, {})[point_key(record)] = record
        elif record.status == "skipped":
            skipped.setdefault(record.session, {})[record.sweep, record.label] = record
        else:
            continue
        begun[record.session] = min(begun.get(record.session, record.started_at), record.started_at)
    names = sorted(begun, key=lambda name: (begun[name], name))
    nights = []
    for name in names:
        ok = found.get(name, {})
        lost = {key: record for key, record in failed.get(name, {}).items() if key not in ok}
        nights.append(Night(name, begun[name], ok, lost, skipped.get(name, {})))
    return nights


def without_unknown_skips(nights: Sequence[Night], reference: Sequence[Night]) -> list[Night]:
    """The nights; of what they skipped only what any of the reference measured."""
    ran = {(one.sweep, one.label) for night in reference for trials in night.trials.values() for one in trials}
    return [
        replace(night, skipped={key: record for key, record in night.skipped.items() if key in ran}) for night in nights
    ]


def skip_of(night: Night, point: Point) -> Record | None:
    """What a night has of a point that it skipped."""
    names = (point.label, point.label.removesuffix(f" ({point.key[:6]})"))
    return next((record for (_, label), record in night.skipped.items() if label in names), None)


def by_sweep(nights: Sequence[Night]) -> list[list[Night]]:
    """The nights of each sweep, with its points alone; a point belongs to the sweep that ran it last."""
    owner: dict[str, str] = {}
    for night in nights:
        owner |= {key: record.sweep for key, record in night.failed.items()}
        owner |= {key: trials[-1].sweep for key, trials in night.trials.items()}
    found: dict[str, list[Night]] = {}
    for night in nights:
        owners = [owner[key] for key in (*night.trials, *night.failed)]
        for sweep in dict.fromkeys([*owners, *(sweep for sweep, _ in night.skipped)]):
            ok = {key: trials for key, trials in night.trials.items() if owner[key] == sweep}
            failed = {key: record for key, record in night.failed.items() if owner[key] == sweep}
            skipped = {key: record for key, record in night.skipped.items() if key[0] == sweep}
            found.setdefault(sweep, []).append(Night(night.session, night.date, ok, failed, skipped))
    return [*found.values()]


def records_of(night: Night) -> dict[str, Record]:
    """The last trial of each point that ran that night."""
    return {**night.failed} | {key: trials[-1] for key, trials in night.trials.items()}


def former_keys(nights: Iterable[Night]) -> dict[str, str]:
    """The keys of points that measure something else than before, with those that they had then."""
    found = {key: former_key(record) for night in nights for key, record in records_of(night).items()}
    return {key: former for key, former in found.items() if former is not None}


def points_of(nights: Sequence[Night]) -> list[Point]:
    """Every point of the nights, by its newest label, in the order of the sweep.

    A point that measures something else since keeps its label; what it was before has its key beside it.
    """
    newest = {key: record for night in nights for key, record in records_of(night).items()}
    ordered = sorted(newest.items(), key=lambda item: (item[1].sweep, item[1].order))
    former = {*former_keys(nights).values()}
    labels = Counter(record.label or key for key, record in ordered if key not in former)
    return [
        Point(key, label if labels[label] + (key in former) == 1 else f"{label} ({key[:6]})")
        for key, label in ((key, record.label or key) for key, record in ordered)
    ]


def value_of(trials: Sequence[Record], metric: str) -> float | None:
    """The night's value: the median over the repeats that count."""
    values = [trial.figures.get(metric) for trial in counting(trials, metric)]
    known = [float(value) for value in values if not is_missing(value) and value > 0]
    return median(known) if known else None


def counting(trials: Sequence[Record], metric: str) -> Sequence[Record]:
    """The repeats that count: those with a result, and of these the trustworthy ones, where there are any."""
    results = [trial for trial in trials if is_result(trial, metric)]
    return [trial for trial in results if not DISTRUSTED & {*trial.caveats}] or results


def is_result(trial: Record, metric: str) -> bool:
    """Whether a trial's figure may be taken, whatever its others are worth."""
    return NO_RESULT.get(metric) not in trial.caveats


def values_of(nights: Sequence[Night], points: Sequence[Point], metric: Metric) -> Array:
    """Logarithms (points, nights), larger for worse, NaN where a point has no value that night.

    Nights that a caveat makes doubtful count as none, unless most nights of the point are so.
    """
    found, doubts = np.full((2, len(points), len(nights)), np.nan)
    for column, night in enumerate(nights):
        for row, point in enumerate(points):
            trials = night.trials.get(point.key, ())
            value = value_of(trials, metric.name)
            if value is not None:
                found[row, column] = metric.sign * np.log(value)
                doubts[row, column] = bool(doubtful(trials))
    usual = np.nansum(doubts, 1) > 0.5 * (~np.isnan(doubts)).sum(1)
    kept: Array = np.where((doubts > 0) & ~usual[:, None], np.nan, found)
    return kept


def doubtful(trials: Sequence[Record]) -> frozenset[str]:
    """Caveats that all of the trials bear and that forbid trust; empty where any trial is trustworthy."""
    if any(not DISTRUSTED & {*trial.caveats} for trial in trials):
        return frozenset()
    return frozenset(name for trial in trials for name in trial.caveats if name in DISTRUSTED)


def parts_of(trials: Sequence[Record], names: Sequence[str]) -> Row:
    """Medians over the repeats of parts of the step, in seconds."""
    found: Row = {}
    for name in names:
        values = [trial.figures.get(name) for trial in trials if trial.figures.get(name) is not None]
        found[name] = median(values) if values else None
    return found
