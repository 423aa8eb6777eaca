"""How exchange grows with ranks: as (N - 1)/N, a ring's volume, and as N - 1, its latencies and shared links."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

from benchsuite.predict.scaling.curve import Curve

MIN_SCALES = 2
"""Of several ranks each, that tell the two apart."""


def volume_and_linear(seconds: Mapping[int, float]) -> tuple[float, float]:
    """A and B of A (N - 1)/N + B (N - 1), neither negative, from seconds by ranks: least squares of relative errors."""
    ranks, wanted = np.array([*seconds], dtype=np.float64), np.array([*seconds.values()])
    design = np.stack([(ranks - 1) / ranks, ranks - 1], axis=1)
    volume, linear = nnls(design / wanted[:, None], np.ones(len(ranks)))[0]
    return float(volume), float(linear)


def linear_share(curve: Curve) -> float:
    """What grows with N - 1 in the exchange as measured, of the largest scale's step; 0 where that is not told.

    The width of its prior: latencies that add up show in two scales of several ranks, and are believed that far. Where
    some scales lie on one node, those on several tell: what crossing to a second node costs is no latency.
    """
    several = [point for point in curve.points if point.ranks > 1]
    if curve.placement.crosses:
        several = [point for point in several if curve.placement.at(point.ranks) > 1]
    told = {point.ranks: (point.parts or {}).get("exchange") for point in several}
    known = {ranks: seconds for ranks, seconds in told.items() if seconds}
    if len(known) < MIN_SCALES or curve.exchange is not None:
        return 0.0
    return volume_and_linear(known)[1] * (curve.most_ranks - 1) / curve.points[-1].middle_s
