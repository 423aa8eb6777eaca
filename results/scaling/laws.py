"""Laws of scaling fitted to measured throughputs: Amdahl, Gustafson, Karp-Flatt and USL, each with its uncertainty.

Amdahl, Gustafson and USL are least squares of log throughput over all repeats, with 95 % intervals from the linearised
model and Student's t (Seber & Wild, "Nonlinear Regression", 1989, 5.1). Repeats are taken as independent, and what the
law itself misses counts as noise: where a law does not fit, its interval is wide.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import t as student

from benchsuite.results.scaling.efficiency import Bounds

Floats = NDArray[np.float64]
Law = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Estimate:
    """A parameter with its 95 % interval; None where an end is not bounded, or the value itself does not exist."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    kind: str | None = "95 %"
    """What the ends are: of a confidence interval, or of the `range` over repeats."""


@dataclass(frozen=True)
class Fit:
    """A law fitted to a series."""

    law: str
    estimates: tuple[Estimate, ...]
    """None of them where there are too few points: `problem` says so."""
    relative_error: float | None = None
    """Root mean square over repeats of measured / fitted - 1."""
    problem: str | None = None


def amdahl_speedup(ranks: Floats, serial: Floats | float) -> Floats:
    """1 / (f + (1 - f) / N): fixed work of which a share f does not spread (Amdahl 1967)."""
    return 1 / (serial + (1 - serial) / ranks)


def gustafson_speedup(ranks: Floats, serial: Floats | float) -> Floats:
    """N - f (N - 1): work that grows with N, a share f of the time of which is serial (Gustafson 1988)."""
    return ranks - serial * (ranks - 1)


def usl_speedup(ranks: Floats, contention: Floats | float, coherency: Floats | float) -> Floats:
    """N / (1 + sigma (N - 1) + kappa N (N - 1)), the Universal Scalability Law (Gunther 2007)."""
    return ranks / (1 + contention * (ranks - 1) + coherency * ranks * (ranks - 1))


def amdahl(rates: Mapping[int, Sequence[float]]) -> Fit:
    """Serial fraction of a strong series; `rates`: samples per second of each repeat, by number of ranks."""
    return _fit("Amdahl", ("serial fraction",), lambda n, p: amdahl_speedup(n, p[1]), (1.0,), rates)


def gustafson(rates: Mapping[int, Sequence[float]]) -> Fit:
    """Serial fraction of a weak series; `rates` as for `amdahl`."""
    return _fit("Gustafson", ("serial fraction",), lambda n, p: gustafson_speedup(n, p[1]), (1.0,), rates)


def usl(rates: Mapping[int, Sequence[float]]) -> Fit:
    """Contention sigma, coherency kappa, and the ranks N* = sqrt((1 - sigma) / kappa) where throughput peaks.

    The ends of N*'s interval are those of sigma's and kappa's; None: it grows for ever.
    """
    names = ("contention", "coherency")
    fit = _fit("USL", names, lambda n, p: usl_speedup(n, p[1], p[2]), (1.0, np.inf), rates)
    if fit.problem:
        return fit
    sigma, kappa = fit.estimates
    peak = Estimate(
        "peak ranks", _peak(sigma.value, kappa.value), _peak(sigma.high, kappa.high), _peak(sigma.low, kappa.low)
    )
    return Fit(fit.law, (*fit.estimates, peak), fit.relative_error)


def _peak(contention: float | None, coherency: float | None) -> float | None:
    if contention is None or not coherency:
        return None
    return math.sqrt(max(0.0, 1 - contention) / coherency)


def karp_flatt(ranks_ratio: float, efficiency: float) -> float:
    """The experimentally determined serial fraction (1/S - 1/p) / (1 - 1/p), S = p x efficiency (Karp & Flatt 1990).

    `ranks_ratio` p is N / N0: the baseline stands for the single processor. One that rises with N is overhead rather
    than serial work.
    """
    speedup = ranks_ratio * efficiency
    return (1 / speedup - 1 / ranks_ratio) / (1 - 1 / ranks_ratio)


def karp_flatt_fit(baseline_ranks: int, efficiencies: Mapping[int, tuple[float, Bounds]]) -> Fit:
    """The serial fraction at each number of ranks above the baseline's; its interval is that of the efficiency."""

    def serial(ranks: int, efficiency: float | None) -> float | None:
        return karp_flatt(ranks / baseline_ranks, efficiency) if efficiency else None

    found = [
        Estimate(
            f"{ranks} ranks",
            serial(ranks, value),
            serial(ranks, between.high),
            serial(ranks, between.low),
            between.kind,
        )
        for ranks, (value, between) in efficiencies.items()
        if ranks > baseline_ranks
    ]
    return Fit("Karp-Flatt", tuple(found), problem=None if found else "Karp-Flatt needs 2 numbers of ranks, 1 measured")


SMALLEST = 1e-6
"""Estimates below it are zero: the search stays strictly inside of its limits."""


def _fit(
    law: str, names: tuple[str, ...], speedup: Law, most: tuple[float, ...], rates: Mapping[int, Sequence[float]]
) -> Fit:
    """Fit P(1) x speedup; parameters but P(1) lie between 0 and `most`."""
    needed = len(names) + 2
    if len(rates) < needed:
        return Fit(law, (), problem=f"{law} needs {needed} numbers of ranks, {len(rates)} measured")
    ranks = np.array([n for n, repeats in rates.items() for _ in repeats], dtype=np.float64)
    measured = np.log([rate for repeats in rates.values() for rate in repeats])

    def residuals(parameters: Floats) -> Floats:
        fitted = np.maximum(speedup(ranks, parameters), np.finfo(np.float64).tiny)
        return np.asarray(parameters[0] + np.log(fitted) - measured, dtype=np.float64)

    start = [float(np.median(measured - np.log(ranks))), *(0.01 for _ in names)]
    limits = ([-np.inf, *(0.0 for _ in names)], [np.inf, *most])
    found = least_squares(residuals, start, bounds=limits, x_scale="jac", xtol=1e-12, ftol=1e-12, gtol=1e-12)
    widths = _half_widths(np.asarray(found.jac, dtype=np.float64), found.fun)
    estimates = zip(names, found.x[1:], widths[1:], most, strict=True)
    error = float(np.sqrt(np.mean(np.expm1(-found.fun) ** 2)))
    return Fit(law, tuple(_estimate(*estimate) for estimate in estimates), error)


def _estimate(name: str, value: float, width: float, most: float) -> Estimate:
    """The estimate within its limits."""
    value = float(value) if value > SMALLEST else 0.0
    high = min(value + width, most)
    return Estimate(name, value, max(0.0, value - width), float(high) if math.isfinite(high) else None)


def _half_widths(jacobian: Floats, residuals: Floats) -> list[float]:
    """Half of each parameter's 95 % interval; infinite where the data do not tell it."""
    spare = len(residuals) - jacobian.shape[1]
    try:
        inverse = np.linalg.inv(jacobian.T @ jacobian)
    except np.linalg.LinAlgError:
        return [math.inf] * jacobian.shape[1]
    variance = float(residuals @ residuals) / spare
    return [float(width) for width in student.ppf(0.975, spare) * np.sqrt(variance * np.diag(inverse))]
