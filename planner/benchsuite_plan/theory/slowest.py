"""Waiting for the slowest of many ranks."""

import numpy as np
from scipy.special import ndtri_exp

from benchsuite.predict.theory.arrays import Floats

QUANTILES = 2001
"""Points of the integral for the mean of a maximum; its error is below 1e-4 standard deviations up to 10^6 ranks."""


def of_slowest(num_ranks: Floats) -> Floats:
    """How many standard deviations the slowest of N normal times lies behind the mean, on average; (n,).

    E[max(Z_1 .. Z_N)] is the mean over quantiles u of Phi^-1(u^(1/N)).
    """
    numbers, places = np.unique(num_ranks, return_inverse=True)
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    found: Floats = ndtri_exp(np.log(middles) / numbers[:, None]).mean(-1)[places]
    return found
