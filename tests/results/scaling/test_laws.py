"""Laws of scaling: parameters that are known are found, and their intervals hold them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t as student

from benchsuite.results.scaling.efficiency import Bounds
from benchsuite.results.scaling.laws import (
    Fit,
    amdahl,
    amdahl_speedup,
    gustafson,
    gustafson_speedup,
    karp_flatt,
    karp_flatt_fit,
    usl,
    usl_speedup,
)

RANKS = (1, 2, 4, 8, 16)
Law = Callable[[Any], Any]


def campaign(law: Law, noise: float = 0.0, repeats: int = 1, seed: int = 0, ranks: Sequence[int] = RANKS) -> Any:
    """Throughputs of a law at 100 samples per second alone."""
    generator = np.random.default_rng(seed)
    return {n: [100 * float(law(np.float64(n))) * generator.lognormal(0, noise) for _ in range(repeats)] for n in ranks}


def test_laws_by_hand():
    assert amdahl_speedup(np.float64(4), 0.1) == pytest.approx(1 / (0.1 + 0.9 / 4))
    assert gustafson_speedup(np.float64(4), 0.1) == pytest.approx(3.7)
    assert usl_speedup(np.float64(4), 0.1, 0.01) == pytest.approx(4 / (1 + 0.3 + 0.12))


@pytest.mark.parametrize("serial", [0.0, 0.03, 0.5, 1.0])
def test_amdahls_fraction_is_found(serial: float):
    found = amdahl(campaign(lambda n: amdahl_speedup(n, serial)))
    assert found.estimates[0].value == pytest.approx(serial, abs=1e-4)


@pytest.mark.parametrize("serial", [0.0, 0.03, 0.5])
def test_gustafsons_fraction_is_found(serial: float):
    found = gustafson(campaign(lambda n: gustafson_speedup(n, serial)))
    assert found.estimates[0].value == pytest.approx(serial, abs=1e-4)


@pytest.mark.parametrize(("contention", "coherency"), [(0.0, 0.0), (0.05, 0.0), (0.05, 0.002), (0.0, 0.01)])
def test_usls_parameters_are_found(contention: float, coherency: float):
    found = usl(campaign(lambda n: usl_speedup(n, contention, coherency)))
    assert [estimate.value for estimate in found.estimates[:2]] == pytest.approx([contention, coherency], abs=1e-4)


def test_usl_peaks_where_its_derivative_is_zero():
    found = usl(campaign(lambda n: usl_speedup(n, 0.04, 0.0096)))
    peak = found.estimates[2]
    assert (peak.name, peak.value) == ("peak ranks", pytest.approx(10.0, rel=1e-3))
    beside = [usl_speedup(np.float64(n), 0.04, 0.0096) for n in (9.9, 10.0, 10.1)]
    assert beside[1] > max(beside[0], beside[2])


def test_linear_throughput_has_no_peak():
    assert usl(campaign(lambda n: n)).estimates[2].value is None


def test_a_baseline_of_several_ranks_gives_the_same_fraction():
    found = amdahl(campaign(lambda n: amdahl_speedup(n, 0.03), ranks=(4, 8, 16)))
    assert found.estimates[0].value == pytest.approx(0.03, abs=1e-6)


def test_value_and_interval_are_those_of_curve_fit():
    rates = campaign(lambda n: usl_speedup(n, 0.05, 0.003), 0.01, 3)
    ranks = np.array([n for n, found in rates.items() for _ in found], dtype=float)
    measured = np.log([rate for found in rates.values() for rate in found])
    values, covariance = curve_fit(
        lambda n, log_one, s, k: log_one + np.log(usl_speedup(n, s, k)), ranks, measured, [4.6, 0.01, 0.01]
    )
    half = student.ppf(0.975, len(ranks) - 3) * np.sqrt(np.diag(covariance))
    for number, estimate in enumerate(usl(rates).estimates[:2], start=1):
        assert estimate.value == pytest.approx(values[number], rel=1e-3)
        assert (estimate.low, estimate.high) == pytest.approx(
            (values[number] - half[number], values[number] + half[number]), rel=1e-3
        )


@pytest.mark.parametrize(
    ("fit", "law", "repeats"),
    [
        (amdahl, lambda n: amdahl_speedup(n, 0.05), 1),
        (amdahl, lambda n: amdahl_speedup(n, 0.05), 6),
        (gustafson, lambda n: gustafson_speedup(n, 0.2), 3),
        (usl, lambda n: usl_speedup(n, 0.05, 0.004), 3),
    ],
)
def test_intervals_hold_the_truth(fit: Callable[[Any], Fit], law: Law, repeats: int):
    truth = fit(campaign(law)).estimates[0].value
    assert truth is not None
    held = 0
    for seed in range(100):
        estimate = fit(campaign(law, 0.01, repeats, seed)).estimates[0]
        low, high = estimate.low, estimate.high
        held += low is not None and high is not None and low <= truth <= high
    assert held >= 88


def test_a_law_that_does_not_fit_has_a_wide_interval_and_an_error():
    good, bad = (amdahl(campaign(law)) for law in (lambda n: amdahl_speedup(n, 0.05), lambda n: min(n, 5.0)))
    assert good.relative_error == pytest.approx(0.0, abs=1e-6)
    assert bad.relative_error is not None and bad.relative_error > 0.05
    estimate = bad.estimates[0]
    assert estimate.high is not None and estimate.low is not None and estimate.high - estimate.low > 0.1


@pytest.mark.parametrize(
    ("fit", "ranks", "words"),
    [
        (amdahl, (1, 2), "Amdahl needs 3 numbers of ranks, 2 measured"),
        (gustafson, (4,), "Gustafson needs 3 numbers of ranks, 1 measured"),
        (usl, (1, 2, 4), "USL needs 4 numbers of ranks, 3 measured"),
    ],
)
def test_too_few_points_give_nothing_and_say_so(fit: Callable[[Any], Fit], ranks: tuple[int, ...], words: str):
    found = fit(campaign(lambda n: n, repeats=9, ranks=ranks))
    assert (found.estimates, found.relative_error, found.problem) == ((), None, words)


@pytest.mark.parametrize("serial", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("ratio", [2, 7.5])
def test_karp_flatt_inverts_amdahl(serial: float, ratio: float):
    efficiency = float(amdahl_speedup(np.float64(ratio), serial)) / ratio
    assert karp_flatt(ratio, efficiency) == pytest.approx(serial, abs=1e-12)


def test_karp_flatt_by_hand():
    # a speed-up of 5.3 with 8 processors
    assert karp_flatt(8, 5.3 / 8) == pytest.approx((1 / 5.3 - 0.125) / 0.875)


def test_karp_flatts_interval_is_the_efficiencys_turned_round():
    found = karp_flatt_fit(2, {2: (1.0, Bounds(None, None, None)), 4: (0.8, Bounds(0.75, 0.85, "range"))})
    (estimate,) = found.estimates
    assert (estimate.name, estimate.kind) == ("4 ranks", "range")
    # p = 2: (1/1.6 - 1/2) / (1/2), and the same of 1.7 and 1.5
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.25, 2 / 1.7 - 1, 2 / 1.5 - 1))


def test_karp_flatt_of_the_baseline_alone():
    assert karp_flatt_fit(1, {1: (1.0, Bounds(None, None, None))}).problem


def test_no_interval_reaches_beyond_what_a_fraction_can_be():
    for seed in range(5):
        estimate = amdahl(campaign(lambda n: n, 0.05, 2, seed)).estimates[0]
        assert estimate.value is not None and estimate.low is not None and estimate.high is not None
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert math.isfinite(estimate.high)
