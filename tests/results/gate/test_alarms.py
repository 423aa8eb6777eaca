"""The gate on arrays: steps are found in time, and noise, outliers, flips and drifts are not."""

import numpy as np
import pytest

from benchsuite.results.compare.metrics import Array
from benchsuite.results.gate.alarms import MIN_NIGHTS, Alarms, watch
from benchsuite.results.gate.noise import learn
from benchsuite.results.gate.step_detection import evidence, tail

SERIES, BEFORE, SIGMA = 40, 120, 0.02
PRACTICAL = 0.005


def made(nights: int, seed: int = 0, series: int = SERIES) -> Array:
    values: Array = np.random.default_rng(seed).normal(0.0, SIGMA, (series, nights))
    return values


def judged(values: Array, first: int = BEFORE, num_baseline: int = 0) -> Alarms:
    return watch(values, num_baseline, PRACTICAL, num_series=len(values), first=first)


@pytest.mark.parametrize(("sigmas", "nights"), [(4.0, 2), (2.0, 8)])
def test_steps_are_found_in_time(sigmas: float, nights: int):
    values = made(BEFORE + nights)
    values[:, BEFORE:] += sigmas * SIGMA
    found = judged(values).alarm[:, BEFORE:].any(1)
    assert found.mean() >= 0.87, "95 % in `python -m bench gate`, on more of them and longer histories"


def test_quiet_nights_are_quiet():
    alarms = judged(made(BEFORE + 100, seed=3))
    assert alarms.alarm[:, BEFORE:].any(0).sum() <= 3
    assert alarms.judged[:, BEFORE:].all()


@pytest.mark.parametrize("kind", ["outliers", "flips", "drift"])
def test_what_is_no_step_is_no_alarm(kind: str):
    values, rng = made(BEFORE + 60, seed=4) / 2, np.random.default_rng(5)
    if kind == "outliers":
        values += 0.26 * (rng.random(values.shape) < 0.05)
    elif kind == "flips":
        values += 0.08 * (rng.random(values.shape) < 0.3)
    else:
        values += np.linspace(0, 0.005, values.shape[1])
    assert judged(values).alarm[:, BEFORE:].any(0).sum() <= 3


def test_two_outliers_in_a_row_are_no_step_where_outliers_are_known():
    values, rng = made(BEFORE + 2) / 2, np.random.default_rng(6)
    values[:, :BEFORE] += 0.26 * (rng.random((SERIES, BEFORE)) < 0.05)
    values[0, BEFORE:] += 0.26
    assert not judged(values).alarm[0].any()


def test_the_night_of_the_step_is_named():
    values = made(BEFORE + 8)
    values[:, BEFORE + 3 :] += 5 * SIGMA
    alarms = judged(values)
    since = alarms.since[alarms.alarm[:, -1], -1]
    assert len(since) > 0.95 * SERIES
    assert np.median(since) == BEFORE + 3
    assert (np.abs(since - BEFORE - 3) <= 1).mean() > 0.9


def test_the_shift_and_its_interval():
    values = made(BEFORE + 8)
    values[:, BEFORE:] += 4 * SIGMA
    alarms = judged(values)
    off = (alarms.shift[:, -1] - 4 * SIGMA) / alarms.shift_error[:, -1]
    assert abs(np.median(off)) < 0.3
    assert (np.abs(off) < 1.96).mean() > 0.85


def test_a_step_that_stays_is_told_every_night_and_never_learnt():
    values = made(BEFORE + 60, series=20)
    values[3, BEFORE:] += 6 * SIGMA
    alarms = judged(values)
    assert alarms.alarm[3, BEFORE + 2 :].mean() > 0.97
    assert (alarms.since[3, -1], alarms.shift[3, -1]) == (BEFORE, pytest.approx(6 * SIGMA, abs=2 * SIGMA))


def test_a_mended_step_is_told_no_more():
    values = made(BEFORE + 30, series=20)
    values[3, BEFORE : BEFORE + 10] += 8 * SIGMA
    alarms = judged(values)
    assert alarms.alarm[3, BEFORE + 1 : BEFORE + 10].all()
    assert not alarms.alarm[3, BEFORE + 11 :].any()


def test_better_is_no_alarm():
    values = made(BEFORE + 8)
    values[:, BEFORE:] -= 6 * SIGMA
    assert not judged(values).alarm.any()


def test_steps_below_the_practical_threshold_are_no_alarm():
    values = made(BEFORE + 8) / 100
    values[:, BEFORE:] += 0.003
    assert not judged(values).alarm.any()
    values[:, BEFORE:] += 0.004
    assert judged(values).alarm[:, -1].all()


def test_too_few_nights_judge_nothing():
    values = made(MIN_NIGHTS, series=5)
    assert not judged(values, 0, num_baseline=MIN_NIGHTS - 1).judged.any()


def test_a_baseline_counts_from_its_last_night():
    """Without one, the last nights may hold a step already and are not learnt from."""
    values = made(MIN_NIGHTS + 4, series=30)
    values[:, -3:] += 20 * SIGMA
    with_it = judged(values, 0, num_baseline=MIN_NIGHTS + 1)
    assert with_it.judged[:, -1].all() and with_it.alarm[:, -1].mean() > 0.9
    assert not judged(values, 0).judged[:, -1].any()


def test_a_series_without_tonights_value_is_not_judged():
    values = made(BEFORE + 1)
    values[7, -1] = np.nan
    alarms = judged(values)
    assert not alarms.judged[7, -1] and alarms.judged[:, -1].sum() == SERIES - 1
    assert np.isnan(alarms.shift[7, -1])


def test_evidence_of_one_step_by_hand():
    """Well-known noise and one 4-sigma pair of nights: exp(delta * sum(z) - n delta^2 / 2) at its own size."""
    noise = learn(made(240))
    recent = np.full((SERIES, 8), np.nan)
    recent[:, -2:] = noise.level[:, None] + 4 * noise.scale[:, None]
    own = evidence(noise, recent).log_factor
    by_hand = 4 * 8 - 2 * 4**2 / 2 + np.log(0.35)
    assert (own > by_hand - 3.5).all() and (own < by_hand + 1.5).all()
    assert evidence(noise, recent).nights.tolist() == [2.0] * SERIES


def test_heavy_tails_raise_the_threshold():
    """Student's t with 4 degrees of freedom against normal noise of the same variance."""
    heavy = np.random.default_rng(8).standard_t(4, (SERIES, 240)) / np.sqrt(2) * SIGMA
    assert tail(learn(heavy), 1e-4) > tail(learn(made(240)), 1e-4) + 1


def test_few_nights_have_no_tail():
    assert tail(learn(made(7)), 1e-4) == -np.inf
