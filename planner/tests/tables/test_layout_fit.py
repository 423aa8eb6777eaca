"""Constants found again, errors out of sample, and intervals that hold."""

from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout.step import step
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.tables.layout_fit import (
    Fitted,
    Predictor,
    fit,
    fit_constants,
    flops_per_device_s,
    priors,
    priors_for,
    shapes,
    sizes,
)
from benchsuite_plan.theory import interval
from planner.tests.configured import configured, constants, published


def grid(seed: int = 0, count: int = 60):
    """Random valid layouts."""
    chosen = np.random.default_rng(seed)
    pick = lambda *values: chosen.choice(values, count)  # noqa: E731
    return configured(
        microbatch=pick(1, 2, 4, 8),
        num_microbatches=pick(4, 8, 16),
        hidden_size=pick(1024, 2048, 4096),
        tensor=pick(1, 2, 4, 8),
        data=pick(1, 2, 8, 16),
        pipeline=pick(1, 2, 4),
        recompute=1,
    )


def fitted_to(runs: Configurations, seconds: Any) -> Fitted:
    return fit_constants(runs.work, seconds, priors_for(runs, seconds))


class TestConstants:
    def test_are_found_again(self):
        runs = grid()
        true = constants(flops_per_s=150e12, half_area=6e5, link_bytes_per_s=90e9, link_latency_s=15e-6)
        found = fitted_to(runs, step(runs.work, true).step_s)
        assert found.constants.flops_per_s == pytest.approx(150e12, rel=0.15)
        again = step(grid(1).work, found.constants).step_s / step(grid(1).work, true).step_s
        assert np.abs(again - 1).max() < 0.02

    def test_outliers_move_little(self):
        runs = grid()
        true = step(runs.work, constants()).step_s
        spoilt = true.copy()
        spoilt[::10] *= 2
        found = step(runs.work, fitted_to(runs, spoilt).constants).step_s
        assert np.median(np.abs(found / true - 1)) < 0.02

    def test_says_what_rows_tell_nothing_of(self):
        runs = configured(microbatch=[1, 2, 4, 8, 16, 32], num_microbatches=8)
        learnt = fitted_to(runs, step(runs.work, constants()).step_s).learnt
        assert learnt["flops_per_s"]
        assert not learnt["node_bytes_per_s"] and not learnt["link_growth"]

    def test_rates_start_at_the_scale_of_the_rows(self):
        runs = configured(microbatch=[1, 2, 4])
        seconds = np.array([1.0, 2.0, 4.0])
        reached = flops_per_device_s(runs, seconds)
        assert reached == pytest.approx([1024 * (72 * 24 * 2048**2 * (1 + 1024 / 12288) + 6 * 50257 * 2048)] * 3)
        assert priors_for(runs, seconds)["flops_per_s"].median == pytest.approx(1.2 * reached[0])
        assert priors_for(runs, seconds, {"node_bytes_per_s": 1e9})["node_bytes_per_s"].median == 1e9

    def test_error_lines(self):
        with pytest.raises(UserError, match=r"constant 'node_bytes' is unknown; .*nearest: node_bytes_per_s"):
            priors_for(configured(), np.ones(1), {"node_bytes": 1.0})
        with pytest.raises(UserError, match="a step time is not above 0"):
            fit_constants(configured(microbatch=[1, 2]).work, [1.0, 0.0], priors())
        with pytest.raises(UserError, match=r"5 rows with a step time: .* at least 6"):
            fit(configured(microbatch=[1, 2, 3, 4, 5]), np.ones(5))


class TestPublished:
    def test_rows_not_seen(self):
        """Twenty rows of vTrain's multi-node table, ten folds: within 12 % on average, none by a factor of 1.5."""
        runs, seconds = published()
        found = fit(runs, seconds)
        assert found.mape < 0.12
        assert np.abs(found.errors).max() < 0.4
        reached = np.abs(found.errors) <= found.half_width
        assert 0.85 <= reached.mean() <= 1

    def test_five_times_the_parameters_on_four_times_the_devices(self):
        """Fitted to 3.6 billion parameters on 64 GPUs: 18.4 billion on 256 within 20 %."""
        runs, seconds = published()
        small = runs.ranks == 64
        found = fit(runs.take(small), seconds[small])
        predicted = found.predict(runs.take(~small))
        assert np.abs(predicted.step_s / seconds[~small] - 1).mean() < 0.2
        held = (predicted.low_s <= seconds[~small]) & (seconds[~small] <= predicted.high_s)
        assert held.mean() >= 5 / 7
        assert predicted.parts.step_s == pytest.approx(predicted.step_s)

    def test_one_group_is_left_out_by_rows(self):
        runs, seconds = published()
        alone, without = fit(runs, seconds, groups=np.zeros(len(seconds))), fit(runs, seconds)
        assert alone.errors.tolist() == without.errors.tolist()

    def test_intervals_widen_beyond_what_was_measured(self):
        found = fit(*published())
        assert found.half_width_unseen >= found.half_width
        far = configured(
            data=[32, 64, 128],
            tensor=8,
            num_microbatches=16,
            seq_len=2048,
            recompute=1,
            hidden_size=6144,
            num_heads=48,
            num_layers=40,
        )
        within, one, two = (np.log(found.predict(far).high_s / found.predict(far).step_s)).tolist()
        assert one == pytest.approx(np.hypot(within, interval.DRIFT_PER_DOUBLING))
        assert two == pytest.approx(np.hypot(within, 2 * interval.DRIFT_PER_DOUBLING))


class TestShapes:
    def test_are_those_of_products(self):
        assert shapes(configured(data=[1, 8], tensor=2)) == [(2048, 1024, 2, 2)] * 2

    def test_that_no_row_has_get_the_wider_interval(self):
        runs = grid()
        fitted = Fitted(constants(), {})
        found = Predictor(fitted, np.zeros(60), 0.1, 0.3, frozenset(shapes(runs)), sizes(runs), 64.0)
        wanted = (runs.take(np.arange(1)), configured(microbatch=3, recompute=1))
        assert [np.log(one.high_s / one.low_s)[0] / 2 for one in map(found.predict, wanted)] == pytest.approx(
            [0.1, 0.3]
        )


class TestInterval:
    def test_conformal_quantile(self):
        assert interval.conformal_quantile(np.arange(1, 20), 0.9) == 18  # ceil(20 x 0.9) = 18
        assert interval.conformal_quantile([3.0, 1.0, 2.0], 0.5) == 2
        assert interval.conformal_quantile([1.0, 1.0, 1.0, 1.0], 0.9) == pytest.approx(1.5), "wider than the largest"

    def test_holds_for_the_next(self):
        draws = np.abs(np.random.default_rng(0).standard_normal((2000, 30)))
        held = [row[-1] <= interval.conformal_quantile(row[:-1]) for row in draws]
        assert 0.88 <= np.mean(held) <= 0.93

    def test_distance(self):
        measured, wanted = np.array([[0.0, 3.0], [2.0, 5.0]]), np.array([[1.0, 4.0], [5.0, 9.0], [-1.0, 4.0]])
        assert interval.distance(wanted, measured).tolist() == [0, 5, 1]
