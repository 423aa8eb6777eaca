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


def interleaved(
    first: Callable[[], float],
    second: Callable[[], float],
    num_pairs: int,
    most_pairs: int = 0,
    half_width: float = 0.05,
) -> Ratio:
    """Run both in turn, the order of each pair swapped; each returns its own seconds.

    Where `most_pairs` is more than `num_pairs`, pairs are added, up to so many, while the interval reaches further than
    `half_width` of the median to either side, taken together: the rule asks how wide it is, never where it lies.
    """
    ratios: list[float] = []
    while True:
        for _ in range(num_pairs):
            if len(ratios) % 2:
                b, a = second(), first()
            else:
                a, b = first(), second()
            ratios.append(a / b)
        interval = bootstrap((ratios,), np.median, method="percentile", rng=0).confidence_interval
        found = Ratio(float(np.median(ratios)), float(interval.low), float(interval.high), len(ratios))
        wide = found.high - found.low > 2 * half_width * found.median
        if not wide or len(ratios) + num_pairs > most_pairs:
            return found
