"""Estimates of how long trials take, from how long they took before: what ends in time, and what a sweep costs."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchsuite.grid.point import Plan, Point
from benchsuite.results.render.words import counted, duration
from benchsuite.results.store.outcomes import FINISHED, Ended, alike_of


class Durations:
    """The longest time that a trial of each point has taken."""

    def __init__(self) -> None:
        self._taken_s: dict[str, float] = {}
        self._median_s: float | None = None
        """The median of the above; None until it is computed again."""

    def learn(self, point_id: str, taken_s: float) -> None:
        """Note how long a trial of a point has taken."""
        self._taken_s[point_id] = max(taken_s, self._taken_s.get(point_id, 0.0))
        self._median_s = None

    def estimate_s(self, point_id: str) -> float | None:
        """Return the longest that this point has taken, else the median of others; None where no trial has run."""
        if self._median_s is None and self._taken_s:
            self._median_s = median(self._taken_s.values())
        return self._taken_s.get(point_id, self._median_s)

    def lower_estimate_s(self, point_id: str) -> float | None:
        """Return the longest that this point has taken, else the shortest of others; None where no trial has run.

        So where a point that has not run does not fit, no repeat of another point fits either.
        """
        return self._taken_s.get(point_id, min(self._taken_s.values(), default=None))

    def has(self, point_id: str) -> bool:
        """Return whether a trial of this very point has run."""
        return point_id in self._taken_s

    def total_s(self, point_ids: Iterable[str]) -> float | None:
        """Return how long trials of these points take one after another; None where no trial has run."""
        estimates_s = [self.estimate_s(point) for point in point_ids]
        return sum(seconds for seconds in estimates_s if seconds is not None) if None not in estimates_s else None


def point_of(trial_id: str) -> str:
    """Return the id of a trial's point from the trial's id."""
    return trial_id.partition(".")[0]


def durations_of(outcomes: Iterable[Ended], plan: Plan) -> Durations:
    """Return how long trials of a plan's points have taken, and trials of its sweep that are like one of them."""
    alike = {alike_of(point.spec.model_dump()) for point in plan.points}
    return learn_durations(outcomes, {point.point_id for point in plan.points}, {plan.sweep.name}, alike)


def learn_durations(
    outcomes: Iterable[Ended], points: Collection[str], sweeps: Collection[str], alike: Collection[tuple[str, ...]]
) -> Durations:
    """Return how long trials of some points have taken, and trials of some sweeps that are `alike`, in any session."""
    durations = Durations()
    for ended in outcomes:
        point = point_of(ended.trial_id)
        neighbour = ended.sweep in sweeps and ended.kind == "trial" and ended.alike in alike
        if (point in points or neighbour) and ended.status in FINISHED and ended.wall_s is not None:
            durations.learn(point, ended.wall_s)
    return durations


@dataclass(frozen=True)
class Cost:
    """The time that trials should take one after another."""

    time_s: float
    device_s: float
    """Seconds times the devices that a trial uses: one per rank."""


def cost(points: Sequence[Point], durations: Durations) -> Cost | None:
    """Return what a trial of each of these points should take; None where no trial has run."""
    time_s = device_s = 0.0
    for point in points:
        estimate_s = durations.estimate_s(point.point_id)
        if estimate_s is None:
            return None
        time_s += estimate_s
        device_s += estimate_s * point.spec.ranks
    return Cost(time_s, device_s)


def describe_cost(points: Sequence[Point], durations: Durations, sweeps: int = 1, left_s: float = math.inf) -> str:
    """Return how long these trials may take, shared among so many sweeps, with the device-hours.

    Where no trial has run yet, it is the most that their time limit allows, or the time left until the end.
    """
    expected = cost(points, durations)
    if expected is not None:
        about = f"about {duration(expected.time_s / sweeps)}, {_format_hours(expected.device_s)} device-hours"
        return about + _guess_note({point.point_id for point in points if not durations.has(point.point_id)})
    limits_s = [point.spec.measure.timeout_s for point in points]
    most_s = sum(limits_s) / sweeps
    if left_s < most_s:
        return f"not known before the first trials; {duration(left_s)} are left until the end"
    shared = f" for each of {counted(sweeps, 'sweep')}" if sweeps > 1 else ""
    device_s = sum(limit_s * point.spec.ranks for limit_s, point in zip(limits_s, points, strict=True))
    most = f"{duration(most_s)} at most{shared} ({_format_hours(device_s)} device-hours in all)"
    return f"not known before the first trials; measure.timeout_s allows {most}"


def _guess_note(points: Collection[str]) -> str:
    """Return the note that points with no trial yet are taken to last as long as others; empty where all have one."""
    if not points:
        return ""
    has, they_are = ("has", "it is") if len(points) == 1 else ("have", "they are")
    missing = f"{counted(len(points), 'point')} {has} no trial yet"
    return f" ({missing}: {they_are} taken to last as long as others of this sweep)"


def _format_hours(seconds: float) -> str:
    """Return hours with two significant digits and no exponent."""
    return f"{float(f'{seconds / 3600:.2g}'):,.12g}"
