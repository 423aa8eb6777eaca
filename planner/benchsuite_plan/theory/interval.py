"""Intervals of predictions: what they are, and how wide.

A 90 % interval is a prediction interval: a step measured anew, the median over repeats, is meant to lie in it nine
times out of ten. It is not a confidence interval of a mean. Of layouts of a table it rests on split-conformal quantiles
of errors out of sample, so that all that made the model miss rows it had not seen is in them, noise of the measurement
too; widened by DRIFT_PER_DOUBLING with the distance from what was measured.

In none: another machine, network or software, a library that changes its algorithm with ranks or sizes, failures.
Nothing proves nine out of ten: it is checked by back-tests (`plan table --back-test`, BENCHMARKS.md).
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.theory.arrays import Floats

LEVEL = 0.9
DRIFT_PER_DOUBLING = 0.06
"""Half of what a 90 % interval of log time is wider by, per doubling beyond what was measured."""
Z_95 = 1.6449
"""The normal distribution's 95 % quantile."""


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


def distance(wanted: Floats, measured: Floats) -> Floats:
    """Doublings from each row of sizes, (m, k) as log2, to the box that the measured ones, (n, k), lie in: (m,)."""
    low, high = measured.min(0), measured.max(0)
    found: Floats = np.linalg.norm(np.maximum(np.maximum(low - wanted, wanted - high), 0.0), axis=1)
    return found
