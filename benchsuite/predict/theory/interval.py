"""Intervals of predictions: what they are, and how wide.

A 90 % interval is a prediction interval: a step measured anew at that scale, the median over repeats of a trial run
like those that the prediction was fitted to, is meant to lie in it nine times out of ten. It is not a confidence
interval of a mean.

Layouts of a table (`layout_fit`): split-conformal quantiles of errors out of sample, so that all that made the model
miss rows it had not seen is in them, noise of the measurement too; widened by DRIFT_PER_DOUBLING with the distance from
what was measured. Series (`model.Model`): root of the sum of squares of four sources, as if independent. Noise of a
median over repeats, with how far the fit misses its own points; spread of the constants that this noise and the priors
allow; constants of the wire, where exchange was inferred from them; and an error per doubling beyond the largest scale,
as back-tests of the series itself show it. The upper end also holds input as slow as was seen, where a limit of a
shared file system may be near; and, where ranks need a second node and only one was measured, a network between nodes
that is `nodes.SLOWER` times as slow as the links within.

In none: another machine, network or software, a library that changes its algorithm with ranks or sizes, cores or links
that more ranks come to share, failures. Nothing proves nine out of ten: it is checked by back-tests (`coverage`;
`predict --back-test`, BENCHMARKS.md), for rows and series like those.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.theory.arrays import Floats

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


Z_95 = 1.6449
"""The normal distribution's 95 % quantile."""
