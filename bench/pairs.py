"""Ratios of two pieces of work from interleaved pairs: machines drift, neighbours in time do not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

from bench.tables import goal


@dataclass(frozen=True)
class Ratio:
    """A median over pairs, of first / second mostly, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.median:.4f} [{self.low:.4f} {self.high:.4f}] over {self.num_pairs} pairs"


def pairs(first: Callable[[], float], second: Callable[[], float], num_pairs: int) -> list[float]:
    """Run both in turn, the order of each pair swapped; each returns its own seconds. First over second, by pair."""
    ratios: list[float] = []
    for number in range(num_pairs):
        if number % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        ratios.append(a / b)
    return ratios


def interleaved(first: Callable[[], float], second: Callable[[], float], num_pairs: int) -> Ratio:
    """The ratio of two pieces of work by pairs in this process."""
    ratios = pairs(first, second, num_pairs)
    interval = bootstrap((ratios,), np.median, method="percentile", rng=0).confidence_interval
    return Ratio(float(np.median(ratios)), float(interval.low), float(interval.high), len(ratios))


def over_processes(ratios: Sequence[Sequence[float]], draws: int = 2000) -> Ratio:
    """The ratio by pairs of several processes: what differs from one to the next is part of the interval.

    Processes are drawn anew, and of each its pairs (a bootstrap of two stages: Davison and Hinkley, "Bootstrap Methods
    and their Application", 1997, section 3.8).
    """
    rng = np.random.default_rng(0)
    medians = [
        np.median(
            np.concatenate(
                [rng.choice(ratios[at], len(ratios[at])) for at in rng.integers(len(ratios), size=len(ratios))]
            )
        )
        for _ in range(draws)
    ]
    low, high = np.quantile(medians, (0.025, 0.975))
    return Ratio(float(np.median(np.concatenate(list(ratios)))), float(low), float(high), sum(map(len, ratios)))


def print_best(found: Mapping[tuple[str, str], Ratio], wanted: float) -> None:
    """Ratios by format and loader, and whether the best loader of every format reaches what is wanted."""
    best: dict[str, float] = {}
    for (name, loader), ratio in found.items():
        print(f"    {name} {loader}: {ratio}")
        best[name] = max(best.get(name, 0.0), ratio.median)
    least = min(best, key=lambda name: best[name])
    print(goal(best[least] >= wanted, f"best loader of every format >= {wanted} (least: {least})"))
