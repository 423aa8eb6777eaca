"""A fit that lies below the largest measured scale is lifted to it: more ranks do not bring a step back down."""

from collections.abc import Mapping

from benchsuite.predict.scaling.curve import Point

LEAST_MISSED, NOISES = 0.05, 2.0
"""Share of the step, and standard deviations of its median, that are left to the fit."""


def missed_s(largest: Point, fitted: Mapping[str, float], noise: float) -> dict[str, float]:
    """Seconds by part that the fit misses of the largest scale's step without input; nothing where that is little.

    Divided as the parts are missed where they were told apart; else all of it is computation.
    """
    short = largest.base_s - sum(fitted[part] for part in ("compute", "exchange", "imbalance"))
    if short <= max(LEAST_MISSED, NOISES * noise) * largest.base_s:
        return {}
    told = {part: seconds for part, seconds in (largest.parts or {}).items() if seconds is not None}
    below = {part: max(seconds - fitted[part], 0.0) for part, seconds in told.items()}
    if not sum(below.values()):
        return {"compute": short}
    return {part: short * seconds / sum(below.values()) for part, seconds in below.items()}


def added(parts: Mapping[str, float], missed: Mapping[str, float], network: float) -> dict[str, float]:
    """Parts of a step with what the fit misses, on a network so many times as fast."""
    speed = {"exchange": network}
    return {part: seconds + missed.get(part, 0.0) / speed.get(part, 1.0) for part, seconds in parts.items()}
