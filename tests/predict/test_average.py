"""The average over laws: known laws are found, its arithmetic is that of whole normal distributions, intervals hold."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from bench.predict import predicted, simulated
from benchsuite.predict.average import DRIFTS, FULL, LAWS, NO_LOSS, NOISES, fit, quantiles
from benchsuite.predict.curve import Kind

MEASURED = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
KINDS: tuple[Kind, ...] = ("weak", "strong")


def steps(kind: Kind, lost: np.ndarray, ranks: list[float]) -> list[float]:
    work = np.array(ranks) if kind == "strong" else 1.0
    return ((1 + lost) / work).tolist()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in LAWS[kind]])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_exact_steps_of_a_law_are_foretold(kind: Kind, name: str, share: float) -> None:
    law = LAWS[kind][name]
    ranks = np.array([*MEASURED, 64.0])
    clean = steps(kind, share / (1 - share) * law(ranks) / law(ranks[-2:-1]), ranks.tolist())
    found = fit(kind, MEASURED, clean[:-1], [0.0] * len(MEASURED))
    value, low, high = found.seconds([64.0])[:, 0]
    assert value == pytest.approx(clean[-1], rel=0.08) and low < clean[-1] < high
    assert share < 0.5 or (value == pytest.approx(clean[-1], rel=0.02) and next(iter(found.shares)) == name)


@pytest.mark.parametrize("kind", KINDS)
def test_perfect_scaling_goes_on(kind: Kind) -> None:
    found = fit(kind, MEASURED, steps(kind, np.zeros(6), MEASURED), [0.0] * 6)
    assert found.seconds([256.0])[0, 0] == pytest.approx(1 / 256 if kind == "strong" else 1.0, rel=0.01)
    assert next(iter(found.shares)) == NO_LOSS


@pytest.mark.parametrize("kind", KINDS)
def test_a_medium_that_is_full_stays_full(kind: Kind) -> None:
    """From 5 ranks on all ranks together are as fast as five."""
    clean = steps(kind, np.maximum(np.array([*MEASURED, 128.0]) / 5, 1) - 1, [*MEASURED, 128.0])
    found = fit(kind, MEASURED, clean[:-1], [0.0] * 6)
    assert found.seconds([128.0])[0, 0] == pytest.approx(clean[-1], rel=0.05)
    assert next(iter(found.shares)) == FULL


def test_noise_in_the_last_scale_is_no_law() -> None:
    for off in (0.99, 1.01):
        found = fit("weak", [8, 16, 32], [1.0, 1.0, off], [0.0] * 3)
        assert found.seconds([256.0])[0, 0] == pytest.approx(1.0, abs=0.03)


def test_weights_and_predictions_are_those_of_whole_normal_distributions() -> None:
    """Levels integrated by the trapezoidal rule; a new scale by conditioning one normal distribution of any level."""
    ranks, seconds, repeats = np.array([1.0, 2.0, 8.0]), np.array([1.0, 1.04, 1.3]), np.array([1e-4, 2e-4, 1e-4])
    average = fit("weak", ranks.tolist(), seconds.tolist(), repeats.tolist())
    growth, values = average.laws.growth(ranks), np.log(seconds)
    every = [*product(NOISES.items(), DRIFTS.items())]
    likelihoods, levels = np.zeros_like(average.weights), np.linspace(-2, 2, 20001)
    for row, ((noise, p_noise), (drift, p_drift)) in enumerate(every):
        behind = np.log2(ranks)
        covariance = drift**2 * np.minimum(behind[:, None], behind) + np.diag(noise**2 + repeats)
        for place in (0, 40, 270):
            density = multivariate_normal(growth[place], covariance).pdf(values - levels[:, None])
            found = np.trapezoid(density, levels)
            likelihoods[row, place] = found * average.laws.priors[place] * p_noise * p_drift
    known = likelihoods > 0
    wanted = likelihoods[known] / likelihoods[0, 0]
    assert average.weights[known] / average.weights[0, 0] == pytest.approx(wanted, rel=1e-4)

    (noise, _), (drift, _) = every[1]
    behind, wide = np.log2([1, 2, 8, 32]), 1e4
    whole = drift**2 * np.minimum(behind[:, None], behind) + np.diag([*(noise**2 + repeats), noise**2 + repeats[-1]])
    whole += wide
    gain = np.linalg.solve(whole[:3, :3], whole[:3, 3])
    means, variances = average._predict(average.candidates[1], np.array([32.0]))
    mean = average.laws.growth(np.array([32.0]))[40, 0] + gain @ (values - growth[40])
    assert means[40, 0] == pytest.approx(mean, abs=1e-5)
    assert variances[40, 0] == pytest.approx(whole[3, 3] - gain @ whole[:3, 3], rel=1e-3)


def test_quantiles_of_mixtures() -> None:
    (one,) = quantiles(np.array([[2.0]]), np.array([[0.5]]), np.array([3.0])).T
    assert one == pytest.approx(norm(2, 0.5).ppf([0.5, 0.05, 0.95]), abs=1e-4)
    (two,) = quantiles(np.array([[0.0], [10.0]]), np.array([[1.0], [2.0]]), np.array([0.25, 0.75])).T
    assert two[1] == pytest.approx(norm.ppf(0.2), abs=1e-3) and two[2] == pytest.approx(
        10 + 2 * norm.ppf(1 - 0.05 / 0.75), abs=1e-3
    )


def test_a_measured_scale_is_answered_by_its_measurement() -> None:
    found = fit("strong", [64, 128, 256], [6.1, 3.617, 1.9], [0.0] * 3).seconds([64, 128, 256, 512])
    assert found[0, 1] == pytest.approx(3.617, rel=1e-5) and found[1, 1] < 3.617 < found[2, 1]


def test_intervals_grow_with_the_distance_and_with_what_repeats_differ_by() -> None:
    def widths(variance: float) -> np.ndarray:
        _, low, high = fit("weak", [1, 2, 4], [1.0, 1.02, 1.05], [variance] * 3).seconds([4, 8, 16, 32, 64])
        return np.log(high / low)

    assert (np.diff(widths(0.0)) > 0).all() and (widths(0.01) > widths(0.0)).all()


def test_fewer_ranks_than_were_measured_are_no_error() -> None:
    value, low, high = fit("weak", [4, 8], [1.0, 1.0], [0.0, 0.0]).seconds([1.0])[:, 0]
    assert low < value < high and 0.85 < value <= 1.01


def test_nine_of_ten_steps_of_noisy_series_lie_in_their_intervals() -> None:
    """Of a seed that no constant was chosen with; limits that no known scale shows are out of reach."""
    every = [one for one in simulated(seed=7) if one.family != "input knee"]
    rows = predicted(every, rulers=False)
    covered = np.mean([held.low <= 0 <= held.high for held in rows])
    assert len(rows) == 1350 and 0.87 < covered < 0.97
