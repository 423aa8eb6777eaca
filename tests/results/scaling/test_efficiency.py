"""Efficiencies, intervals and losses against arithmetic by hand and SciPy's bootstrap."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from benchsuite.results.scaling.efficiency import bounds, efficiency, losses

SIX = [98.0, 99.0, 100.0, 101.0, 102.0, 103.0]


def alone(rates: list[float]) -> dict[str | None, list[float]]:
    """Repeats outside of batch jobs."""
    return {None: rates}


def test_efficiency_is_the_ratio_of_medians_over_the_ratio_of_ranks():
    # medians 100 and 360: 360 / (100 * 8 / 2)
    assert efficiency(alone([350.0, 360.0, 900.0]), alone([90.0, 100.0, 101.0]), 8, 2) == pytest.approx(0.9)


def test_repeats_of_all_allocations_count_alike():
    assert efficiency({"a": [1.0, 2.0], "b": [30.0]}, alone([1.0]), 2, 1) == pytest.approx(1.0)


def test_below_six_repeats_there_is_a_range_of_all_pairs():
    found = bounds(alone([170.0, 190.0]), alone([95.0, 100.0]), 2, 1)
    assert found.kind == "range"
    assert (found.low, found.high) == pytest.approx((170 / 100 / 2, 190 / 95 / 2))


@pytest.mark.parametrize(("here", "there"), [(5, 6), (6, 5)])
def test_both_points_need_six_repeats(here: int, there: int):
    assert bounds(alone(SIX[:here]), alone(SIX[:there]), 2, 1).kind == "range"


def test_one_repeat_of_each_says_nothing_about_certainty():
    found = bounds(alone([190.0]), alone([100.0]), 2, 1)
    assert (found.low, found.high, found.kind) == (None, None, None)


def test_the_interval_is_that_of_scipys_bootstrap():
    generator = np.random.default_rng(7)
    here, there = generator.lognormal(5, 0.05, 12), generator.lognormal(4.4, 0.05, 9)

    def ratio(x: Any, y: Any, axis: int = -1) -> Any:
        return np.median(x, axis=axis) / np.median(y, axis=axis) / 2

    other = bootstrap(
        (here, there), ratio, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    found = bounds(alone(here.tolist()), alone(there.tolist()), 2, 1)
    assert found.kind == "95 %"
    assert found.low is not None and found.high is not None
    assert found.high - found.low == pytest.approx(other.high - other.low, rel=0.06)
    assert (found.low + found.high) / 2 == pytest.approx((other.low + other.high) / 2, rel=0.005)


def test_the_same_repeats_give_the_same_interval():
    assert bounds(alone(SIX), alone(SIX), 2, 1) == bounds(alone(SIX), alone(SIX), 2, 1)


def test_the_interval_holds_the_truth_in_95_of_100_campaigns():
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        here, there = (alone(generator.lognormal(0, 0.05, 6).tolist()) for _ in range(2))
        found = bounds(here, there, 1, 1)
        held += found.low is not None and found.high is not None and found.low <= 1 <= found.high
    assert held >= 0.9 * 200


def width(rates: dict[str | None, list[float]], baseline: dict[str | None, list[float]]) -> float:
    found = bounds(rates, baseline, 1, 1)
    assert found.low is not None and found.high is not None
    return found.high - found.low


def test_repeats_that_share_an_allocation_are_not_independent():
    # two slow jobs and two fast ones: as 12 independent repeats the median seems surer than it is
    jobs: dict[str | None, list[float]] = {"a": [80.0] * 3, "b": [100.0] * 3, "c": [100.0] * 3, "d": [120.0] * 3}
    independent = alone([rate for rates in jobs.values() for rate in rates])
    baseline = alone([100.0] * 6)
    assert width(jobs, baseline) > 1.3 * width(independent, baseline) > 0


def test_what_an_allocation_does_to_both_points_cancels():
    slow: dict[str | None, list[float]] = {"a": [80.0, 80.0], "b": [100.0, 100.0], "c": [120.0, 120.0]}
    twice = {name: [2 * rate for rate in rates] for name, rates in slow.items()}
    elsewhere = {f"other {name}": rates for name, rates in twice.items()}
    assert width(twice, slow) == pytest.approx(0.0)
    assert width(elsewhere, slow) > 0.3


def test_the_order_of_allocations_does_not_matter():
    one: dict[str | None, list[float]] = {"a": [80.0] * 3, "b": [120.0] * 3}
    other = dict(reversed(one.items()))
    assert width(other, one) == pytest.approx(0.0)


def step(ranks: int, load: float, wire: float, waiting: float, forward: float, **more: Any) -> dict[str, Any]:
    """A trial's parts of the step, which add up to it."""
    exchange = wire + waiting
    return {
        "spec.world_size": ranks,
        "load_s": load,
        "communication_s": exchange,
        "communication_min_s": wire,
        "forward_s": forward,
        "step_s_mean": load + exchange + forward,
    } | more


def test_losses_of_a_weak_series():
    # 100 ms alone; at 4 ranks 125 ms: 10 more of load, 6 wire, 5 waiting, 4 computing. Efficiency 100 / 125
    first = step(1, 0.010, 0.0, 0.0, 0.090, communication_s=None, communication_min_s=None)
    found = losses(step(4, 0.020, 0.006, 0.005, 0.094), first, 1.0, 0.8)
    assert found == pytest.approx({"load": 0.08, "communication": 0.048, "imbalance": 0.04, "rest": 0.032})
    assert sum(share or 0 for share in found.values()) == pytest.approx(1 - 0.8)


def test_losses_of_a_strong_series():
    # 2 -> 4 ranks at the same batch: the parts should halve: 100 -> 50 ms, and 80 are taken. Efficiency 50 / 80
    first = step(2, 0.020, 0.010, 0.002, 0.068)
    found = losses(step(4, 0.020, 0.012, 0.004, 0.044), first, 0.5, 50 / 80)
    assert found == pytest.approx({"load": 10 / 80, "communication": 7 / 80, "imbalance": 3 / 80, "rest": 10 / 80})
    assert sum(share or 0 for share in found.values()) == pytest.approx(30 / 80)


def test_parts_that_got_faster_are_negative_losses():
    found = losses(step(2, 0.0, 0.0, 0.0, 0.100), step(1, 0.020, 0.0, 0.0, 0.080), 1.0, 1.0)
    assert found == pytest.approx({"load": -0.2, "communication": 0.0, "imbalance": 0.0, "rest": 0.2})


def test_exchange_that_was_not_measured_is_in_the_rest():
    unknown = {"communication_s": None, "communication_min_s": None}
    found = losses(step(4, 0.0, 0.0, 0.0, 0.125) | unknown, step(2, 0.0, 0.0, 0.0, 0.1) | unknown, 1.0, 0.8)
    assert (found["communication"], found["imbalance"]) == (None, None)
    assert found["rest"] == pytest.approx(0.2)


def test_exchange_whose_waiting_is_not_known_is_told_whole():
    first = step(2, 0.0, 0.010, 0.0, 0.090, communication_min_s=None)
    found = losses(step(4, 0.0, 0.020, 0.015, 0.090, communication_min_s=None), first, 1.0, 0.8)
    assert (found["communication"], found["imbalance"]) == (pytest.approx(0.2), None)
    assert found["rest"] == pytest.approx(0.0)


def test_without_steps_all_is_rest():
    nothing = {"spec.world_size": 2, "load_s": None, "step_s_mean": None}
    assert losses(nothing, nothing, 1.0, 0.9) == {
        "load": None,
        "communication": None,
        "imbalance": None,
        "rest": pytest.approx(0.1),
    }
