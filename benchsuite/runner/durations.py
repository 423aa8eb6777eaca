"""How long trials take, by how long they have taken: what ends in time, what is left, what a sweep costs."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchsuite.grid.point import Plan, Point
from benchsuite.results.render.words import counted, duration
from benchsuite.results.store.outcomes import FINISHED, Ended, alike_of


class Durations:
    """How long trials have taken, by point."""

    def __init__(self) -> None:
        self._taken_s: dict[str, float] = {}
        self._usual_s: float | None = None
        """Median of the above, until more is learned."""

    def learn(self, point_id: str, taken_s: float) -> None:
        """Note how long a trial of a point has taken."""
        self._taken_s[point_id] = max(taken_s, self._taken_s.get(point_id, 0.0))
        self._usual_s = None

    def estimate_s(self, point_id: str) -> float | None:
        """The longest that this point has taken, else the median of the others; None where nothing is known yet."""
        if self._usual_s is None and self._taken_s:
            self._usual_s = median(self._taken_s.values())
        return self._taken_s.get(point_id, self._usual_s)

    def least_s(self, point_id: str) -> float | None:
        """The longest that this point has taken, else the shortest of the others; None where nothing is known yet.

        By this no repeat fits where a point that has not run does not.
        """
        return self._taken_s.get(point_id, min(self._taken_s.values(), default=None))

    def has(self, point_id: str) -> bool:
        """Whether a trial of this very point has told."""
        return point_id in self._taken_s

    def total_s(self, point_ids: Iterable[str]) -> float | None:
        """How long trials of these points take one after another; None where nothing is known yet."""
        found = [self.estimate_s(point) for point in point_ids]
        return sum(taken for taken in found if taken is not None) if None not in found else None


def point_of(trial_id: str) -> str:
    """The point of a trial, by its id."""
    return trial_id.partition(".")[0]


def durations_of(outcomes: Iterable[Ended], plan: Plan) -> Durations:
    """How long trials of a plan's points, and those of its sweep that are like one of them, have taken in a store."""
    alike = {alike_of(point.spec.model_dump()) for point in plan.points}
    return learnt(outcomes, {point.point_id for point in plan.points}, {plan.sweep.name}, alike)


def learnt(
    outcomes: Iterable[Ended], points: Collection[str], sweeps: Collection[str], alike: Collection[tuple[str, ...]]
) -> Durations:
    """How long trials of points have taken, and those of sweeps that are alike, in whichever session of a store."""
    found = Durations()
    for ended in outcomes:
        point = point_of(ended.trial_id)
        neighbour = ended.sweep in sweeps and ended.kind == "trial" and ended.alike in alike
        if (point in points or neighbour) and ended.status in FINISHED and ended.wall_s is not None:
            found.learn(point, ended.wall_s)
    return found


@dataclass(frozen=True)
class Cost:
    """What trials are expected to take, one after another."""

    time_s: float
    device_s: float
    """Seconds times the devices that a trial uses: one a rank."""


def cost(points: Sequence[Point], known: Durations) -> Cost | None:
    """What a trial of each of these points is expected to take; None where nothing is known yet."""
    taken = [known.estimate_s(point.point_id) for point in points]
    if None in taken:
        return None
    each = [(seconds or 0.0, point.spec.ranks) for seconds, point in zip(taken, points, strict=True)]
    return Cost(sum(seconds for seconds, _ in each), sum(seconds * ranks for seconds, ranks in each))


def in_words(points: Sequence[Point], known: Durations, sweeps: int = 1, left_s: float = math.inf) -> str:
    """How long these trials may take, shared among so many sweeps, and how many hours of devices that is.

    Where no trial of theirs has run yet, the most that their time limit allows, or what is left until the end.
    """
    found = cost(points, known)
    if found is not None:
        about = f"about {duration(found.time_s / sweeps)}, {_hours(found.device_s)} device-hours"
        return about + _guessed({point.point_id for point in points if not known.has(point.point_id)})
    limits_s = [point.spec.measure.timeout_s for point in points]
    most_s = sum(limits_s) / sweeps
    if left_s < most_s:
        return f"not known before the first trials; {duration(left_s)} are left until the end"
    shared = f" for each of {counted(sweeps, 'sweep')}" if sweeps > 1 else ""
    device_s = sum(limit_s * point.spec.ranks for limit_s, point in zip(limits_s, points, strict=True))
    most = f"{duration(most_s)} at most{shared} ({_hours(device_s)} device-hours in all)"
    return f"not known before the first trials; measure.timeout_s allows {most}"


def _guessed(points: Collection[str]) -> str:
    """Say that points without a trial of their own are taken to last as long as others."""
    if not points:
        return ""
    one = len(points) == 1
    taken = f"{'it is' if one else 'they are'} taken to last as long as others of this sweep"
    return f" ({counted(len(points), 'point')} {'has' if one else 'have'} no trial yet: {taken})"


def _hours(seconds: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{seconds / 3600:.2g}'):,.12g}"
