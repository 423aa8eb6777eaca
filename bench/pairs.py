"""Ratios of two pieces of work from interleaved pairs: machines drift, neighbours in time do not."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap


@dataclass(frozen=True)
class Ratio:
    """Median of first / second over pairs, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.median:.4f} [{self.low:.4f} {self.high:.4f}] over {self.num_pairs} pairs"


def interleaved(first: Callable[[], float], second: Callable[[], float], num_pairs: int) -> Ratio:
    """Run both in turn, the order of each pair swapped; each returns its own seconds."""
    ratios = []
    for number in range(num_pairs):
        if number % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        ratios.append(a / b)
    interval = bootstrap((ratios,), np.median, method="percentile", rng=0).confidence_interval
    return Ratio(float(np.median(ratios)), float(interval.low), float(interval.high), num_pairs)
