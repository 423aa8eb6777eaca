"""Curves to predict from: the scaling series of a store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.predict.curve import Curve, Point
from benchsuite.results.render.tables import is_above_one, is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.render.words import rate as in_rate
from benchsuite.results.scaling import knee
from benchsuite.results.scaling.efficiency import pooled
from benchsuite.results.scaling.series import ScalingPoint, Series, data_ranks
from benchsuite.results.store.frames import middle

CONTENDED = 0.05
"""Share of a step spent runnable but not running, from which on cores are short."""


def from_series(series: Series, title: str) -> Curve:
    """The curve of a store's series, and what its user must know of its trials."""
    measured = [point for point in series.points if point.trials]
    rows = {point.ranks: _middle(point) for point in measured}
    points = tuple(_point(series, point, rows[point.ranks]) for point in measured)
    share = data_ranks(measured[-1].trials[0]) / measured[-1].ranks if measured else 1.0
    notes = (*_caveats(series), *_contention(rows), *_nodes(measured), *_input(series, rows))
    return Curve(title, series.kind, series.batch, points, share, notes)


def _point(series: Series, point: ScalingPoint, row: Mapping[str, Any]) -> Point:
    """Seconds per step are samples over the rate, as efficiencies count."""
    samples = series.batch * (data_ranks(point.trials[0]) if series.kind == "weak" else 1)
    au = None if is_above_one(row) else _figure(row, "au")
    return Point(point.ranks, tuple(samples / rate for rate in pooled(point.rates)), au)


def _middle(point: ScalingPoint) -> Mapping[str, Any]:
    """The repeat with the median step."""
    return middle([dict(trial) for trial in point.trials], "step_s_mean")


def _caveats(series: Series) -> list[str]:
    """What trials that count are marked with, and numbers of ranks that do not count, as a line."""
    trials = [trial for point in series.points for trial in point.trials]
    marks = Counter(str(name) for trial in trials for name in trial.get("caveats") or ())
    found = [f"{name} in {count} of {len(trials)} trials" for name, count in marks.most_common()]
    unstable = [str(point.ranks) for point in series.points if point.trials and "unstable" in point.caveats]
    found += [f"unstable at {', '.join(unstable)} ranks"] if unstable else []
    without = [point for point in series.points if not point.trials]
    found += [f"{point.ranks} ranks {point.status}{f' ({point.reason})' if point.reason else ''}" for point in without]
    return [f"trials: {', '.join(found)}"] if found else []


def _contention(rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Say that computation waited for cores."""
    names = ("cpu_contention_fraction", "threads_contention_fraction")
    waited = {ranks: max(_figure(row, name) or 0.0 for name in names) for ranks, row in rows.items()}
    most = max(waited, key=lambda ranks: waited[ranks], default=0)
    if not most or waited[most] < CONTENDED:
        return []
    return [
        f"cores were short: at {counted(most, 'rank')} {waited[most]:.0%} of the step was spent waiting for one; no "
        "law knows how long more ranks on the same cores would wait"
    ]


def _nodes(measured: Sequence[ScalingPoint]) -> list[str]:
    """Say that no scale is known to show the network between nodes."""
    trials = [trial for point in measured for trial in point.trials]
    if any((len(trial.get("env.nodes") or ()) or int(_figure(trial, "spec.nodes") or 1)) > 1 for trial in trials):
        return []
    return ["no scale is known to lie on several nodes: what a network between them costs is not in the prediction"]


def _input(series: Series, rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Say up to which rate the shared storage is known."""
    read = [rate for row in rows.values() if (rate := _figure(row, "io_bytes_per_s"))]
    if not read or knee.staged(series) or not knee.reads_source(series):
        return []
    return [f"input: storage gave up to {in_rate(max(read))}; a limit above that is not in the prediction"]


def _figure(row: Mapping[str, Any], name: str) -> float | None:
    """A figure of a trial; None where it is missing."""
    value = row.get(name)
    return None if is_missing(value) else float(value)  # type: ignore[arg-type]
