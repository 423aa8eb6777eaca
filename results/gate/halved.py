"""What needs no history of noise: points whose rate fell to half or less, in every repeat, from the second night on.

The noise that `alarms` learns takes nights. A rate of half lies beyond what nights differ by: one night is enough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchsuite.results.compare.metrics import Array, Metric
from benchsuite.results.compare.nights import Night, Point, counting
from benchsuite.results.gate.cause import Cause, cause_of
from benchsuite.results.gate.step_detection import NIGHTS
from benchsuite.results.render.tables import is_missing

HALF = math.log(2) - 1e-9
"""A shift of logarithms; a rate of exactly half counts."""


@dataclass(frozen=True)
class Halved:
    """A point at half its rate or less, in every repeat of its newest nights."""

    point: str
    label: str
    metric: str
    before: float
    """The median of the nights before, in the metric's unit."""
    now: float
    """The newest session's value."""
    worse: float
    """Relative change for the worse: 0.5 is half of a rate, 1 is twice a time."""
    since: str
    """The first session with half the rate or less."""
    since_date: str
    nights_since: int
    """Nights with half the rate or less: what the alarm rests on."""
    nights_before: int
    """Nights that it is compared with."""
    cause: Cause
    session: str
    """The session that was judged: the newest that has the point."""


def rate_of(gated: Sequence[Metric]) -> Metric:
    """Return the metric that tells a point's rate: samples/s, or of collectives the time that one takes."""
    return max(gated, key=lambda metric: metric.gate_share)


def judge(nights: Sequence[Night], point: Point, metric: Metric, values: Array, first: int) -> Halved | None:
    """What is said of a point in the last of the nights, which are numbered as its values; None: it is not halved."""
    num = nights_halved(values, best_repeats(nights, point, metric), first)
    if not num:
        return None
    known = np.flatnonzero(~np.isnan(values))
    before, step = values[known[:-num]], int(known[-num])
    ratio = math.exp(float(values[-1] - np.median(before)))
    return Halved(
        point=point.key,
        label=point.label,
        metric=metric.name,
        before=math.exp(metric.sign * float(np.median(before))),
        now=math.exp(metric.sign * float(values[-1])),
        worse=1 - 1 / ratio if metric.higher_is_better else ratio - 1,
        since=nights[step].session,
        since_date=nights[step].date,
        nights_since=num,
        nights_before=len(before),
        cause=cause_of(nights[:step], nights[step:], point.key, metric),
        session=nights[-1].session,
    )


def nights_halved(values: Array, best: Array, first: int) -> int:
    """How many of the newest nights have half the rate of those before or less; 0: the newest has not.

    Nights that have it are no part of the median that they are compared with, so that it is told every night, for as
    long as the gate looks back.

    Args:
        values: of each night, logarithms, larger for worse; NaN where there is none. The newest is the last.
        best: of each night its best repeat, in the same way.
        first: number of the first night that may be halved; those before are taken to be good.
    """
    known = np.flatnonzero(~np.isnan(values))
    if not len(known) or known[-1] != len(values) - 1:
        return 0
    found = 0
    for num in range(1, min(NIGHTS, len(known) - 1) + 1):
        before, since = known[:-num], known[-num:]
        if since[0] >= first and (best[since] - np.median(values[before]) >= HALF).all():
            found = num
    return found


def best_repeats(nights: Sequence[Night], point: Point, metric: Metric) -> Array:
    """The logarithm of each night's best repeat that counts, larger for worse; NaN where there is none."""
    found = np.full(len(nights), np.nan)
    for column, night in enumerate(nights):
        told = [trial.figures.get(metric.name) for trial in counting(night.trials.get(point.key, ()), metric.name)]
        logs = [metric.sign * math.log(value) for value in told if not is_missing(value) and value > 0]
        found[column] = min(logs, default=np.nan)
    return found
