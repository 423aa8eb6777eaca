"""Pipeline parallelism: transfers by which a step is longer."""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.theory.arrays import Floats, whole


def hops(num_stages: ArrayLike, num_microbatches: ArrayLike, flushes: bool = False) -> Floats:
    """Transfers of a microbatch, one after the other, by which 1F1B is longer; those of GPipe where it `flushes`.

    2 (p - 1) to fill and to drain; in 1F1B besides 2 for every further microbatch, but for one in p, since a stage
    takes the next one in when the one before has come back. Condition: transfers shorter than a stage's passes.
    """
    p, m = whole(num_stages=num_stages, num_microbatches=num_microbatches)
    between = 0.0 if flushes else m - 1 - np.ceil((m - 1) / p)
    return np.where(p > 1, 2 * (p - 1 + between), 0.0)[()]
