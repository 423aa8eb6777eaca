"""The nightly gate over a store: which sessions are the baseline, and whether the newest of each point is worse."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from benchsuite.results.compare.metrics import GATED, GATED_OF, Array, Metric
from benchsuite.results.compare.nights import (
    Night,
    Point,
    by_sweep,
    doubtful,
    former_key,
    former_keys,
    nights_of,
    points_of,
    records_of,
    skip_of,
    values_of,
    without_unknown_skips,
)
from benchsuite.results.compare.settings import in_words, settings_apart
from benchsuite.results.compare.sides import filtered
from benchsuite.results.gate import halved
from benchsuite.results.gate.alarms import MIN_NIGHTS, Alarms, learnt_end, watch
from benchsuite.results.gate.cause import Cause, cause_of
from benchsuite.results.gate.halved import Halved, rate_of
from benchsuite.results.render.words import counted
from benchsuite.results.store.manifest import publish
from benchsuite.results.store.nearest import nearest
from benchsuite.results.store.place import share
from benchsuite.results.store.record import Kind, Record
from benchsuite.results.store.segments import first_problem, regular_file
from benchsuite.results.store.store import ResultsStore, StoreError

FILE = "baseline.json"
INTERVAL = 1.96
FAR = 4.0
"""Standard deviations of a night."""


class Baseline(BaseModel):
    """What its file says."""

    schema_version: int = 1
    sessions: list[str] = Field(min_length=1)
    set_at: str = ""


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
    """The 95 % interval of how much worse it is: `worse_low` to `worse_high`."""
    since: str
    """The session of the step, at its likeliest."""
    since_date: str
    noise: float
    """Night-to-night standard deviation, relative."""
    cause: Cause
    session: str = ""
    """The session that was judged: the newest that has the point."""


@dataclass(frozen=True)
class Check:
    """What the newest session of each point looks like beside the baseline."""

    session: str
    """The newest of all."""
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
    """Points of the baseline, or of the session before, without an ok trial in the newest session of their sweep, and
    why where that is known."""
    regressions: Sequence[Regression]
    far: Sequence[str] = ()
    """Series that are far outside their nights, which one night does not tell from an outlier, and by how much."""
    sessions: Sequence[str] = ()
    """All that were judged, in time order: sweeps may have sessions of their own."""
    not_run: Sequence[str] = ()
    """Points of the baseline whose sweep has not run since."""
    compared: Sequence[str] = ()
    """Points with too few nights that are worse than the median of those by more than the practical threshold."""
    nights_missing: int = 0
    """Nights until the first of these is judged."""
    reason: str = ""
    """Why nothing could be judged, where there was nothing to judge at all."""
    begun_anew: Sequence[tuple[str, str]] = ()
    """Of the points that were not judged those that measure something else than in the baseline, each with what."""
    replaced: str = ""
    """Where points of the newest session took the place of earlier ones: how many, and by what settings they differ."""
    halved: Sequence[Halved] = ()
    """Points at half their rate or less, which no regression tells: an alarm that rests on few nights."""

    @property
    def alarms(self) -> list[Regression | Halved]:
        """All that is worse, what the history tells first."""
        return [*self.regressions, *self.halved]


class NothingToCheckError(StoreError):
    """There is no baseline, or nothing newer."""


class NothingNewerError(NothingToCheckError):
    """Nothing is newer than the baseline, or than the first night."""


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
    made = Baseline(sessions=chosen, set_at=datetime.now(UTC).isoformat(timespec="seconds"))
    _write(store.path / FILE, made)
    return made.model_dump()


def days_of(store: ResultsStore, sessions: Sequence[str]) -> list[str]:
    """The days on which sessions began, by the clock, each once."""
    nights = [night for kind in GATED_OF for night in nights_of(store.latest(), kind)]
    return sorted({night.date[:10] for night in nights if night.session in sessions and night.trials})


def doubtful_points(store: ResultsStore, sessions: Sequence[str]) -> list[str]:
    """Points whose trials all bear caveats that forbid trust in some of a baseline's nights; with these."""
    told: dict[str, set[str]] = {}
    for kind in GATED_OF:
        nights = [night for night in nights_of(store.latest(), kind) if night.session in sessions]
        labels = {point.key: point.label for point in points_of(nights)}
        for night in nights:
            for key, trials in night.trials.items():
                if found := doubtful(trials):
                    told.setdefault(labels[key], set()).update(found)
    return [f"{label}: {' '.join(sorted(names))}" for label, names in sorted(told.items())]


def _write(path: Path, value: Baseline) -> None:
    """Write by rename, so that readers see the old baseline or the new one."""
    try:
        publish(path, f"{value.model_dump_json(indent=1)}\n".encode())
        share(path, path.parent)
    except OSError as error:
        raise StoreError(f"store {path.parent}: cannot be written: {error.strerror}") from error


def baseline_of(store: ResultsStore) -> dict[str, Any]:
    """What `set_baseline` wrote.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    path, is_store = store.path / FILE, store.exists()
    try:
        return Baseline.model_validate_json(regular_file(path)).model_dump()
    except FileNotFoundError:
        if not is_store:
            raise StoreError(
                f"store {store.path}: no results there; name one with --store or BENCHSUITE_STORE"
            ) from None
        raise NothingToCheckError(f"store {store.path} has no baseline; set one: benchsuite baseline set") from None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else first_problem(error)
        raise StoreError(f"{path}: cannot be read: {why}; set it anew: benchsuite baseline set") from None


def check(store: ResultsStore, kind: Kind = "trial", where: Sequence[str] = (), session: str = "") -> Check:
    """Compare the newest session of each point of the baseline with it, and with what came between.

    Args:
        store: where the records are.
        kind: of the records that are looked at; trials, or collectives (comm).
        where: filters as `sides.side` takes them; of the baseline and of what is newer.
        session: judge this session alone (latest: the newest), as if nothing were newer.

    Raises:
        NothingToCheckError: no baseline, or (NothingNewerError) nothing that has its points is newer.
        StoreError: no store, the baseline's sessions are gone, or a filter is wrong.
    """
    records = store.latest()
    for text in where:
        records = filtered(records, text)
    nights = nights_of(records, kind)
    pinned, is_set = _pinned(store, nights)
    reference = [night for night in nights if night.session in pinned and night.trials]
    if not reference:
        told = ", ".join(sorted(pinned))
        what = "trials" if kind == "trial" else f"records of kind {kind}"
        raise StoreError(f"the baseline's sessions {told} have no ok {what} in {store.path}")
    points = {key for night in reference for key in night.trials}
    points |= {key for key, former in former_keys(nights).items() if former in points}
    replaced = _replaced(nights, reference) if session in ("", "latest") else ""
    nights = [
        night
        for night in without_unknown_skips(nights, reference)
        if night.session in pinned or night.skipped or points & {*night.trials, *night.failed}
    ]
    parts = _parts(_until(nights, session) if session else nights, pinned, is_set)
    if not any(part.later for part in parts):
        none = f"no session with points of the baseline is newer than it ({reference[-1].session}): nothing to check"
        raise NothingNewerError(replaced or none)
    return replace(_check(parts, GATED_OF[kind], alone=bool(session)), replaced=replaced)


def _replaced(nights: Sequence[Night], reference: Sequence[Night]) -> str:
    """How many points of the newest session are new, how many of its sweeps are gone, and what differs."""
    newest, known = nights[-1], {key for night in reference for key in night.trials}
    ran, former = records_of(newest), former_keys([newest])
    before = {key: trials[-1] for night in nights[:-1] for key, trials in night.trials.items() if key in known}
    sweeps = {record.sweep for record in ran.values()}
    new = [record for key, record in ran.items() if key not in known and former.get(key) not in known]
    lost = {key: one for key, one in before.items() if key not in {*ran, *former.values()} and one.sweep in sweeps}
    gone = {key: one for key, one in lost.items() if (one.sweep, one.label) not in newest.skipped}
    if newest in reference or not new or not gone:
        return ""
    since = next(night.session for night in reversed(nights) if gone.keys() & night.trials.keys())
    appeared = f"{counted(len(new), 'point')} {'is' if len(new) == 1 else 'are'} new"
    head = f"{appeared} and {len(gone)} {'is' if len(gone) == 1 else 'are'} gone since {since}"
    rule = "a changed setting makes a new point, which is compared with no night before the change"
    return f"{head}: {_differing([*gone.values()], new)}; {rule}"


def _differing(gone: Sequence[Record], new: Sequence[Record]) -> str:
    """The settings that none of the new points has as one that is gone."""
    if found := settings_apart(gone, new):
        return f"they differ in {in_words(found, ', now ')}"
    ids = ({(record.dataset or {}).get("dataset_id") for record in some} for some in (gone, new))
    return "they read another dataset" if not set.intersection(*ids) else "they differ in their settings"


def _pinned(store: ResultsStore, nights: Sequence[Night]) -> tuple[set[str], bool]:
    """The sessions of the baseline, and whether somebody set it; else the first of each sweep, as many as are needed.

    Raises:
        NothingNewerError: there is one night alone.
    """
    try:
        return {*baseline_of(store)["sessions"]}, True
    except NothingToCheckError:
        measured = [[night for night in group if night.trials] for group in by_sweep(nights)]
        first = {night.session for group in measured for night in group[: min(MIN_NIGHTS, len(group) - 1)]}
        if not first:
            one = "one night so far, with which the next one will be compared"
            raise NothingNewerError(one if any(measured) else "no night has an ok trial") from None
        return first, False


def nothing(reason: str) -> Check:
    """What is known where there is nothing to check."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Check("none", now, (), 0, 0, (), (), (), (), reason=reason)


def _until(nights: Sequence[Night], session: str) -> list[Night]:
    """The nights up to a session, of the sweeps that it has."""
    names = [night.session for night in nights]
    name = names[-1] if session == "latest" else session
    if name not in names:
        raise StoreError(
            f"session {name!r} has no points of the baseline; there are: {', '.join(names[-8:])}{nearest(name, names)}"
        )
    end = names.index(name) + 1
    return [night for group in by_sweep(nights[:end]) if group[-1].session == name for night in group]


def check_nights(reference: Sequence[Night], later: Sequence[Night], gated: Sequence[Metric] = GATED) -> Check:
    """Check nights in time order, the newest last, against those of the reference."""
    return _check(_parts([*reference, *later], {night.session for night in reference}), gated)


@dataclass(frozen=True)
class _Part:
    """A sweep's points and nights."""

    reference: Sequence[Night]
    later: Sequence[Night]
    points: Sequence[Point]
    is_set: bool
    """Whether somebody took the reference's nights to be good; else they are the first that there are."""

    @property
    def nights(self) -> list[Night]:
        return [*self.reference, *self.later]

    @property
    def newest(self) -> list[int]:
        """The number of each point's newest night since the baseline; that of the last night if there is none."""
        nights, first = self.nights, len(self.reference)
        found = {key: n for n, night in enumerate(nights) if n >= first for key in (*night.failed, *night.trials)}
        return [found.get(point.key, len(nights) - 1) for point in self.points]


def _parts(nights: Sequence[Night], pinned: set[str], is_set: bool = True) -> list[_Part]:
    """Each sweep with its own nights: one's session does not stand in the way of another's."""
    since = max((night.date for night in nights if night.session in pinned), default="")
    points, parts = points_of(nights), []
    for group in by_sweep(nights):
        reference = [night for night in group if night.session in pinned and night.trials]
        end = max((night.date for night in reference), default=since)
        later = [night for night in group if night.session not in pinned and night.date > end]
        keys = {key for night in (*reference, *later) for key in (*night.trials, *night.failed)}
        keys -= {*former_keys((*reference, *later)).values()}  # whose settings measure something else since
        parts.append(_Part(reference, later, [point for point in points if point.key in keys], is_set))
    return parts


def _check(parts: Sequence[_Part], gated: Sequence[Metric], alone: bool = False) -> Check:
    """Judge every part; `alone`: only what the newest session has."""
    parts = [part for part in parts if part.later or part.reference]
    live = [part for part in parts if part.later]
    newest = max((part.later[-1] for part in live), key=lambda night: (night.date, night.session))
    values = [{metric: values_of(part.nights, part.points, metric) for metric in gated} for part in live]
    num_series = {  # of all sweeps, over the metric's share of the false alarms
        metric: sum(int((~np.isnan(table[metric])).any(1).sum()) for table in values) / metric.gate_share
        for metric in gated
    }
    judged = [
        _judge(part, table, num_series, newest.session if alone else "")
        for part, table in zip(live, values, strict=True)
    ]
    nights = {night.session: night.date for part in parts for night in part.nights}
    reference = {night.session for part in parts for night in part.reference}
    sessions = {name for one in judged for name in one.sessions} | {newest.session}
    return Check(
        session=newest.session,
        date=newest.date,
        baseline=sorted(reference, key=lambda name: (nights[name], name)),
        num_nights=len(nights),
        num_judged=sum(one.num_judged for one in judged),
        too_young=[label for one in judged for label in one.too_young],
        doubtful=[label for one in judged for label in one.doubtful],
        missing=[label for part in live for label in _missing(part)],
        regressions=sorted((found for one in judged for found in one.regressions), key=lambda found: -found.worse),
        far=[text for one in judged for text in one.far],
        compared=[text for one in judged for text in one.compared],
        nights_missing=min((one.nights_missing for one in judged if one.too_young), default=0),
        sessions=sorted(sessions, key=lambda name: (nights[name], name)),
        not_run=[point.label for part in parts if not part.later for point in part.points],
        begun_anew=[told for one in judged for told in one.begun_anew],
        halved=sorted((found for one in judged for found in one.halved), key=lambda found: -found.worse),
    )


@dataclass(frozen=True)
class _Judged:
    """What is found of a sweep's points."""

    sessions: Sequence[str]
    num_judged: int
    too_young: Sequence[str]
    doubtful: Sequence[str]
    regressions: Sequence[Regression]
    far: Sequence[str]
    compared: Sequence[str]
    begun_anew: Sequence[tuple[str, str]]
    nights_missing: int
    halved: Sequence[Halved]


def _judge(
    part: _Part, values: Mapping[Metric, Array], num_series: Mapping[Metric, float], session: str = ""
) -> _Judged:
    """Judge each point in its newest session, or only those whose newest is the session that is named."""
    nights, columns, num_baseline = part.nights, part.newest, len(part.reference)
    rows = [row for row, column in enumerate(columns) if session in ("", nights[column].session)]
    watched = [
        (metric, watch(table, num_baseline, math.log1p(metric.practical), num_series[metric]))
        for metric, table in values.items()
        if num_series[metric]
    ]
    here = [row for row in rows if part.points[row].key in nights[columns[row]].trials and columns[row] >= num_baseline]
    judged = [(row, metric, alarms) for metric, alarms in watched for row in rows if alarms.judged[row, columns[row]]]
    left = [row for row in here if row not in {row for row, *_ in judged}]
    unsure = {row: " ".join(sorted(doubtful(nights[columns[row]].trials[part.points[row].key]))) for row in left}
    counts = _learnt_from(values.values(), num_baseline)
    young = [row for row in left if not unsure[row]]
    alarmed = {(row, metric) for metric, alarms in watched for row in rows if alarms.alarm[row, columns[row]]}
    rate = rate_of([*values])
    half = _halved(part, [row for row in here if (row, rate) not in alarmed], rate, values[rate])
    return _Judged(
        sessions=[nights[columns[row]].session for row in here],
        num_judged=len(judged),
        too_young=[f"{part.points[row].label} (has {counts[row]})" for row in young],
        doubtful=[f"{part.points[row].label}: {unsure[row]}" for row in left if unsure[row]],
        regressions=[
            _regression(nights[: columns[row] + 1], part.points[row], metric, values[metric][row], alarms, row)
            for metric, alarms in watched
            for row in rows
            if (row, metric) in alarmed
        ],
        far=[
            text
            for metric, alarms in watched
            for text in _far(
                part.points, columns, [row for row in rows if metric != rate or row not in half], metric, alarms
            )
        ],
        compared=[
            text
            for row in young
            for text in _compared(part.points[row], columns[row], row, values, {rate} if row in half else set())
        ],
        begun_anew=[told for row in left for told in _begun_anew(part, part.points[row], nights[columns[row]])],
        nights_missing=max(1, MIN_NIGHTS - max((int(counts[row]) for row in young), default=0)),
        halved=[*half.values()],
    )


def _halved(part: _Part, rows: Sequence[int], rate: Metric, values: Array) -> dict[int, Halved]:
    """Of some points those that have half their rate or less."""
    first, found = len(part.reference) if part.is_set else 0, {}
    for row in rows:
        end = part.newest[row] + 1
        if one := halved.judge(part.nights[:end], part.points[row], rate, values[row, :end], first):
            found[row] = one
    return found


def _begun_anew(part: _Part, point: Point, night: Night) -> Iterator[tuple[str, str]]:
    """What a point measures now and the baseline does not, where the baseline has it as it was before."""
    record, known = records_of(night)[point.key], {key for each in part.reference for key in each.trials}
    if point.key not in known and former_key(record) in known:
        yield point.label, record.revision_reason or str(record.revision)


def _compared(
    point: Point, column: int, row: int, values: Mapping[Metric, Array], alarmed: Collection[Metric]
) -> list[str]:
    """What is worse than in the few nights before, by more than the practical threshold: no alarm, a hint."""
    told = []
    for metric, table in values.items():
        if metric in alarmed:
            continue
        before = table[row, :column][~np.isnan(table[row, :column])]
        shift = float(table[row, column] - np.median(before)) if len(before) else math.nan
        if shift > math.log1p(metric.practical):
            told.append(f"{point.label}: {metric.name} {_worse(shift, metric):.0%} worse")
    return told


def _learnt_from(values: Iterable[Array], num_baseline: int) -> Array:
    """The number of nights that each point's noise is learnt from, of the metric that has most."""
    found = [(~np.isnan(table[:, : learnt_end(table.shape[1] - 1, num_baseline)])).sum(1) for table in values]
    counts: Array = np.max(found, axis=0)
    return counts


def _missing(part: _Part) -> list[str]:
    """Points without an ok trial in the newest of the sweep's nights."""
    nights, newest = part.nights, part.later[-1]
    known = {key for night in (*part.reference, *nights[-2:-1]) for key in (*night.trials, *night.failed)}
    known |= {*newest.failed}
    told = []
    for point in part.points:
        if point.key in known and point.key not in newest.trials:
            lost = newest.failed.get(point.key) or skip_of(newest, point)
            told.append(f"{point.label}: {lost.status}, {lost.reason}" if lost else point.label)
    return told


def _far(
    points: Sequence[Point], columns: Sequence[int], rows: Sequence[int], metric: Metric, alarms: Alarms
) -> list[str]:
    """Series whose newest value is no regression yet, and nothing that their noise explains."""
    found = []
    for row in rows:
        shift, scale = float(alarms.shift[row, columns[row]]), float(alarms.scale[row, columns[row]])
        if not alarms.alarm[row, columns[row]] and shift > max(FAR * scale, math.log1p(metric.practical)):
            found.append(f"{points[row].label}: {metric.name} {_worse(shift, metric):.0%} worse")
    return found


def _regression(
    nights: Sequence[Night], point: Point, metric: Metric, values: Array, alarms: Alarms, row: int
) -> Regression:
    """What is said of an alarm of the last of the nights."""
    last = len(nights) - 1
    step = int(alarms.since[row, last])
    shift, error = float(alarms.shift[row, last]), INTERVAL * float(alarms.shift_error[row, last])
    after = float(np.nanmedian(values[step : last + 1]))
    low, middle, high = (_worse(shift + part, metric) for part in (-error, 0.0, error))
    return Regression(
        point=point.key,
        label=point.label,
        metric=metric.name,
        before=math.exp(metric.sign * (after - shift)),
        now=math.exp(metric.sign * float(values[last])),
        worse=middle,
        worse_low=low,
        worse_high=high,
        since=nights[step].session,
        since_date=nights[step].date,
        noise=float(alarms.scale[row, last]),
        cause=cause_of(nights[:step], nights[step:], point.key, metric),
        session=nights[last].session,
    )


def _worse(shift: float, metric: Metric) -> float:
    """A shift of logarithms as a relative change for the worse: lost of what is good, added to what is bad."""
    return 1 - math.exp(-shift) if metric.higher_is_better else math.expm1(shift)
