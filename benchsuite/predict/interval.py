"""Intervals from errors out of sample: split-conformal quantiles, widened with the distance from what was measured."""

import math

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.arrays import Floats

LEVEL = 0.9
DRIFT_PER_DOUBLING = 0.06
"""Half of what a 90 % interval of log time is wider by, per doubling beyond what was measured."""


def conformal_quantile(scores: ArrayLike, level: float = LEVEL) -> float:
    """The score that the next one stays below with probability `level`: the ceil((n + 1) level)-th smallest of n.

    Condition: scores are of rows that the model had not seen, and exchangeable with the next (Vovk et al. 2005; Lei et
    al. 2018). With fewer than level / (1 - level) scores there is no such quantile: the largest is taken, times what
    normal errors would need.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    place = math.ceil((len(ordered) + 1) * level)
    if place <= len(ordered):
        return float(ordered[place - 1])
    return float(ordered[-1]) * math.sqrt(level / (1 - level) / len(ordered))


def doublings_beyond(ranks: ArrayLike, most_measured: float) -> Floats:
    """log2 of ranks over the most that were measured; 0 within."""
    found: Floats = np.log2(np.maximum(np.asarray(ranks, dtype=np.float64) / most_measured, 1.0))
    return found


def distance(wanted: Floats, measured: Floats) -> Floats:
    """Doublings from each row of sizes, (m, k) as log2, to the box that the measured ones, (n, k), lie in: (m,)."""
    low, high = measured.min(0), measured.max(0)
    found: Floats = np.linalg.norm(np.maximum(np.maximum(low - wanted, wanted - high), 0.0), axis=1)
    return found


def coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Share of measurements within their interval."""
    values = np.asarray(measured, dtype=np.float64)
    return float(np.mean((values >= np.asarray(low)) & (values <= np.asarray(high))))
