"""Measurements that no model explains: what shrinks as ranks grow, though nothing in training makes it shorter."""

from collections.abc import Mapping
from itertools import combinations

from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.series import noise_of

LEAST_FALL, LEAST_OF_STEP = 0.05, 0.01
"""Of the larger value, and of the step: less may be an accident."""
NOISES = 3.0
"""Or as many standard deviations of a median step."""


def impossible(curve: Curve) -> list[str]:
    """A line for each quantity that falls against what more ranks can do; predictions hold it instead of going on."""
    least = max(LEAST_FALL, NOISES * noise_of(curve.points))
    return [*_of_steps(curve, least), *_of_exchange(curve, least)]


def _of_steps(curve: Curve, least: float) -> list[str]:
    """Weak scaling: a step without input falls. Strong scaling: it falls faster than the ranks divide its work."""
    strong = curve.kind == "strong"
    base = {point.ranks: point.base_s for point in curve.points}
    fallen = _fall({ranks: seconds * (ranks if strong else 1) for ranks, seconds in base.items()}, least, 0.0)
    if fallen is None:
        return []
    few, many = fallen
    why, held = (
        ("faster than the ranks grow", "shortened by no more than the ranks")
        if strong
        else ("with the same batch a rank", "held at the level of all scales")
    )
    return [
        f"warning: a step without input takes {base[few] * 1e3:.1f} ms at {few} and {base[many] * 1e3:.1f} ms at "
        f"{many} ranks, {why}: not modelled, it is {held}; look at what was different at {few}"
    ]


def _of_exchange(curve: Curve, least: float) -> list[str]:
    """It falls from two ranks on. Not asked in strong scaling of mixed parallelism, whose messages become smaller."""
    if curve.kind == "strong" and curve.data_share not in (1.0, 1 / curve.most_ranks):
        return []
    told = {point.ranks: (point.parts or {}).get("exchange") for point in curve.points if point.ranks > 1}
    known = {ranks: seconds for ranks, seconds in told.items() if seconds is not None}
    fallen = _fall(known, least, LEAST_OF_STEP * max(point.base_s for point in curve.points))
    if fallen is None:
        return []
    few, many = fallen
    return [
        f"warning: communication not hidden takes {known[few] * 1e3:.1f} ms at {few} and {known[many] * 1e3:.1f} ms at "
        f"{many} ranks: more ranks do not shorten it; predicted to grow from between the two"
    ]


def _fall(values: Mapping[int, float], least: float, least_s: float) -> tuple[int, int] | None:
    """The ranks between which a value falls most, where that is by more than `least` of it and `least_s`."""
    pairs = [
        (values[many] / values[few], few, many)
        for few, many in combinations(sorted(values), 2)
        if values[few] - values[many] > least_s
    ]
    worst = min(pairs, default=None)
    return worst[1:] if worst is not None and worst[0] < 1 - least else None
