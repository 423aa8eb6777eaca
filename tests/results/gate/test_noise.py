"""What is learnt of noise: levels, scales, outliers, drifts, and how a short history leans on the sweep."""

import numpy as np
import pytest

from benchsuite.results.compare.metrics import Array
from benchsuite.results.gate.noise import learn

SERIES, NIGHTS = 60, 200


def made(scale: Array | float = 0.02, series: int = SERIES, nights: int = NIGHTS, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values: Array = rng.normal(0.0, 1.0, (series, nights)) * np.broadcast_to(scale, series)[:, None]
    return values


def test_level_and_scale_of_normal_noise():
    noise = learn(made(0.02) + 5.0)
    assert np.abs(noise.level - 5.0).max() < 5 * 0.02 / np.sqrt(NIGHTS)
    assert noise.scale == pytest.approx(0.02, rel=0.15)
    assert (noise.share == 0).all()
    assert noise.level_error == pytest.approx(0.02 / np.sqrt(NIGHTS), rel=0.25)


def test_scales_that_differ_stay_apart():
    scales = np.where(np.arange(SERIES) % 2, 0.01, 0.10)
    noise = learn(made(scales))
    assert noise.scale[::2] == pytest.approx(0.10, rel=0.25)
    assert noise.scale[1::2] == pytest.approx(0.01, rel=0.25)


def test_a_short_history_leans_on_the_sweep():
    """Eight nights tell a scale to 27 %; sixty such series of one scale tell it far better."""
    values = made(0.02, nights=8)
    alone = values.std(axis=1, ddof=1)
    together = learn(values)
    assert np.abs(together.scale / 0.02 - 1).max() < 0.2 < np.abs(alone / 0.02 - 1).max()
    assert (together.dof > 25).all()


def test_one_series_has_only_itself():
    values = made(0.02, series=1, nights=40)
    noise = learn(values)
    assert noise.scale[0] == pytest.approx(values.std(ddof=1), rel=0.1)
    assert noise.dof[0] == pytest.approx(39, abs=1)


def test_outliers_widen_no_scale_and_move_no_level():
    values = made(0.01)
    struck = np.random.default_rng(1).random(values.shape) < 0.05
    noise = learn(values + 0.26 * struck)
    assert noise.scale == pytest.approx(0.01, rel=0.2)
    assert np.abs(noise.low).max() < 0.004
    assert noise.rate.mean() == pytest.approx(0.05, abs=0.01)
    grid = np.linspace(-1.5, 1.5, len(noise.outliers))
    assert grid[noise.outliers.argmax()] == pytest.approx(0.26, abs=0.01)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_two_levels_are_told_apart(share: float):
    values = made(0.01)
    upper = np.random.default_rng(2).random(values.shape) < share
    noise = learn(values + 0.08 * upper)
    assert np.abs(noise.low).max() < 0.006
    assert noise.high == pytest.approx(0.08, abs=0.006)
    assert noise.share == pytest.approx(upper.mean(1), abs=0.02)
    assert noise.scale == pytest.approx(0.01, rel=0.2)
    assert noise.spread == pytest.approx((values + 0.08 * upper).std(1), rel=0.1)


def test_series_with_one_level_and_with_two_lend_each_other_no_scale():
    values = made(np.where(np.arange(SERIES) < 30, 0.01, 0.05))
    values[:30] += 0.08 * (np.random.default_rng(3).random((30, NIGHTS)) < 0.5)
    noise = learn(values)
    assert (noise.share[:30] > 0).all() and (noise.share[30:] == 0).all()
    assert noise.scale[:30] == pytest.approx(0.01, rel=0.2)
    assert noise.scale[30:] == pytest.approx(0.05, rel=0.15)


def test_a_common_drift_is_carried_to_today():
    drift = 0.02 * np.arange(NIGHTS) / NIGHTS
    noise = learn(made(0.01) + drift, ahead=8)
    today = 0.02 * (NIGHTS - 1 + 8) / NIGHTS
    assert noise.level == pytest.approx(today, abs=0.004)
    assert noise.scale == pytest.approx(0.01, rel=0.2)


def test_series_that_do_not_drift_are_given_no_slope():
    noise = learn(made(0.01), ahead=8)
    assert np.abs(noise.level).max() < 0.004
    assert noise.level_error == pytest.approx(0.01 / np.sqrt(NIGHTS), rel=0.5)


def test_nights_without_a_value_are_passed_over():
    values = made(0.02)
    values[::2, ::3] = np.nan
    noise = learn(values)
    assert noise.scale == pytest.approx(0.02, rel=0.2)
    assert np.isfinite(noise.level).all()


def test_noise_of_some_series():
    noise = learn(made(np.linspace(0.01, 0.1, SERIES)))
    some = noise.of(np.array([3, 5]))
    assert some.scale.tolist() == noise.scale[[3, 5]].tolist()
    assert some.outliers is noise.outliers
    assert some.nights.shape == (2, NIGHTS)
