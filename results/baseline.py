"""The nightly gate over a store: which sessions are the baseline, and whether the newest session is worse."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from results.cause import Cause, cause_of
from results.history import Night, Point, doubtful, nights_of, points_of, values_of
from results.manifest import publish
from results.metrics import GATED, GATED_OF, Metric
from results.noise import Array
from results.record import Kind
from results.store import ResultsStore, StoreError
from results.watch import Alarms, learnt_end, watch

FILE = "baseline.json"
INTERVAL = 1.96
FAR = 4.0
"""Standard deviations of a night."""


@dataclass(frozen=True)
class Regression:
    """One metric of one point that has stepped to a worse level and is still there."""

    point: str
    label: str
    metric: str
    before: float
    """Level before the step, in the metric's unit."""
    now: float
    """The newest session's value."""
    worse: float
    """Relative change for the worse since the step: 0.1 is a tenth."""
    worse_low: float
    worse_high: float
    """Its 95 % interval."""
    since: str
    """The session of the step, at its likeliest."""
    since_date: str
    noise: float
    """Night-to-night standard deviation, relative."""
    cause: Cause


@dataclass(frozen=True)
class Check:
    """What the newest session looks like beside the baseline."""

    session: str
    date: str
    baseline: Sequence[str]
    num_nights: int
    """Sessions that were looked at, the baseline's included."""
    num_judged: int
    """Series (a metric of a point) that could be judged."""
    too_young: Sequence[str]
    """Points with too few sessions before (`watch.MIN_NIGHTS`), and how many they have."""
    doubtful: Sequence[str]
    """Points not judged as a caveat forbids, with it."""
    missing: Sequence[str]
    """Points of the baseline, or of the session before, that have no ok trial now, and why where that is known."""
    regressions: Sequence[Regression]
    far: Sequence[str] = ()
    """Series that are far outside their nights, which one night does not tell from an outlier, and by how much."""


def set_baseline(store: ResultsStore, sessions: Sequence[str] = (), dates: str = "") -> dict[str, Any]:
    """Pin sessions as the reference, by name or by date (a day, or FROM..TO); all there are where neither is given.

    Raises:
        StoreError: a session is not there, no session lies between the dates, or the store cannot be written.
    """
    records = store.latest()
    measured = {n.session: n for kind in GATED_OF for n in nights_of(records, kind) if n.trials}
    nights = sorted(measured.values(), key=lambda night: (night.date, night.session))
    known = [night.session for night in nights]
    for name in sessions:
        if name not in known:
            raise StoreError(f"session {name!r} has no ok trial; there are: {', '.join(known[-8:]) or 'none'}")
    first, _, last = dates.partition("..")
    last = last or ("9999" if dates.endswith("..") else first)
    inside = [n.session for n in nights if not dates or (first <= n.date[:10] and n.date[: len(last)] <= last)]
    chosen = [name for name in inside if not sessions or name in sessions]
    if not chosen:
        there = f"{nights[0].date[:10]}..{nights[-1].date[:10]}" if nights else "none"
        raise StoreError(f"baseline of {dates or 'all sessions'}: no session there; there are: {there}")
    made = {"schema_version": 1, "sessions": chosen, "set_at": datetime.now(UTC).isoformat(timespec="seconds")}
    _write(store.path / FILE, made)
    return made


def _write(path: Path, value: dict[str, Any]) -> None:
    """By rename, so that readers see the old baseline or the new one."""
    try:
        publish(path, (json.dumps(value, indent=1) + "\n").encode())
    except OSError as error:
        raise StoreError(f"store {path.parent}: cannot be written: {error.strerror}") from error


def baseline_of(store: ResultsStore) -> dict[str, Any]:
    """What `set_baseline` wrote.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    path = store.path / FILE
    try:
        found = json.loads(path.read_text())
        sessions = found["sessions"]
    except FileNotFoundError:
        raise StoreError(f"store {store.path} has no baseline; set one: benchsuite baseline set") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; set it anew: benchsuite baseline set") from None
    if not isinstance(sessions, list) or not sessions:
        raise StoreError(f"{path}: has no sessions; set it anew: benchsuite baseline set")
    return dict(found)


def check(store: ResultsStore, kind: Kind = "trial") -> Check:
    """Compare the newest session that has points of the baseline with it, and with what came between.

    `kind`: of the records that are looked at; trials, or collectives (comm).

    Raises:
        StoreError: no baseline, its sessions are gone, or nothing that has its points is newer.
    """
    pinned = set(baseline_of(store)["sessions"])
    nights = nights_of(store.latest(), kind)
    reference = [night for night in nights if night.session in pinned and night.trials]
    if not reference:
        told = ", ".join(sorted(pinned))
        what = "trials" if kind == "trial" else f"records of kind {kind}"
        raise StoreError(f"the baseline's sessions {told} have no ok {what} in {store.path}")
    since = max(night.date for night in reference)
    points = {key for night in reference for key in night.trials}
    later = [
        night
        for night in nights
        if night.session not in pinned and night.date > since and points & {*night.trials, *night.failed}
    ]
    if not later:
        raise StoreError(
            f"no session with points of the baseline is newer than it ({reference[-1].session}): nothing to check"
        )
    return check_nights(reference, later, GATED_OF[kind])


def check_nights(reference: Sequence[Night], later: Sequence[Night], gated: Sequence[Metric] = GATED) -> Check:
    """The same on nights in time order, the newest last."""
    nights = [*reference, *later]
    points = points_of(nights)
    values = {metric: values_of(nights, points, metric) for metric in gated}
    newest = nights[-1]
    watched: list[tuple[Metric, Alarms]] = []
    for metric, table in values.items():
        num_points = int((~np.isnan(table)).any(1).sum())
        if num_points:
            num_series = num_points / metric.gate_share
            watched.append((metric, watch(table, len(reference), math.log1p(metric.practical), num_series)))
    regressions = [
        _regression(nights, points[row], metric, values[metric][row], alarms, int(row))
        for metric, alarms in watched
        for row in np.flatnonzero(alarms.alarm[:, -1])
    ]
    here = [point for point in points if point.key in newest.trials]
    judged = {points[row].key for _, alarms in watched for row in np.flatnonzero(alarms.judged[:, -1])}
    left = [point for point in here if point.key not in judged]
    unsure = {point.key: " ".join(sorted(doubtful(newest.trials[point.key]))) for point in left}
    counts = _learnt_from(values.values(), len(reference))
    young = {point.key: f"{point.label} (has {counts[row]})" for row, point in enumerate(points)}
    return Check(
        session=newest.session,
        date=newest.date,
        baseline=[night.session for night in reference],
        num_nights=len(nights),
        num_judged=sum(int(alarms.judged[:, -1].sum()) for _, alarms in watched),
        too_young=[young[point.key] for point in left if not unsure[point.key]],
        doubtful=[f"{point.label}: {unsure[point.key]}" for point in left if unsure[point.key]],
        missing=_missing(points, nights, len(reference)),
        regressions=sorted(regressions, key=lambda found: -found.worse),
        far=[text for metric, alarms in watched for text in _far(points, metric, alarms)],
    )


def _learnt_from(values: Iterable[Array], num_baseline: int) -> Array:
    """Of each point, the nights that its noise is learnt from: of the metric that has most."""
    found = [(~np.isnan(table[:, : learnt_end(table.shape[1] - 1, num_baseline)])).sum(1) for table in values]
    counts: Array = np.max(found, axis=0)
    return counts


def _missing(points: Sequence[Point], nights: Sequence[Night], num_baseline: int) -> list[str]:
    """Points without an ok trial in the newest of the nights."""
    newest, labels = nights[-1], {point.key: point.label for point in points}
    known = {key for night in (*nights[:num_baseline], *nights[-2:-1]) for key in (*night.trials, *night.failed)}
    known |= {*newest.failed}
    told = []
    for key in (key for key in labels if key in known and key not in newest.trials):
        failed = newest.failed.get(key)
        told.append(f"{labels[key]}: {failed.status}, {failed.reason}" if failed else labels[key])
    return told


def _far(points: Sequence[Point], metric: Metric, alarms: Alarms) -> list[str]:
    """Series whose newest value is no regression yet, and nothing that their noise explains."""
    shift, scale = alarms.shift[:, -1], alarms.scale[:, -1]
    out = ~alarms.alarm[:, -1] & (shift > np.maximum(FAR * scale, math.log1p(metric.practical)))
    return [
        f"{points[row].label}: {metric.name} {_worse(float(shift[row]), metric):.0%} worse"
        for row in map(int, np.flatnonzero(out))
    ]


def _regression(
    nights: Sequence[Night], point: Point, metric: Metric, values: Array, alarms: Alarms, row: int
) -> Regression:
    """What is said of an alarm of the newest night."""
    step = int(alarms.since[row, -1])
    shift, error = float(alarms.shift[row, -1]), INTERVAL * float(alarms.shift_error[row, -1])
    after = float(np.nanmedian(values[step:]))
    low, middle, high = (_worse(shift + part, metric) for part in (-error, 0.0, error))
    return Regression(
        point=point.key,
        label=point.label,
        metric=metric.name,
        before=math.exp(metric.sign * (after - shift)),
        now=math.exp(metric.sign * float(values[-1])),
        worse=middle,
        worse_low=low,
        worse_high=high,
        since=nights[step].session,
        since_date=nights[step].date,
        noise=float(alarms.scale[row, -1]),
        cause=cause_of(nights[:step], nights[step:], point.key, metric),
    )


def _worse(shift: float, metric: Metric) -> float:
    """A shift of logarithms as a relative change for the worse: lost of what is good, added to what is bad."""
    return 1 - math.exp(-shift) if metric.higher_is_better else math.expm1(shift)
