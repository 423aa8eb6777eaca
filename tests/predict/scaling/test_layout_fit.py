"""Constants found again, errors out of sample, and intervals that hold."""

from dataclasses import replace

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import layout_fit
from benchsuite.predict.scaling.layout_fit import features, fit, fit_constants, flops_per_device_s, priors_for, shapes
from benchsuite.predict.theory import interval
from benchsuite.predict.theory.transformer_step import parts
from tests.predict.configured import configured, constants, published


def grid(seed: int = 0, count: int = 60):
    """Random legal layouts."""
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


class TestConstants:
    def test_are_found_again(self):
        runs = grid()
        true = constants(flops_per_s=150e12, half_tokens=600.0, link_bytes_per_s=90e9, tensor_latency_s=60e-6)
        found = fit_constants(runs, parts(runs, true).step_s)
        assert found.constants["flops_per_s"] == pytest.approx(150e12, rel=0.15)
        assert found.noise == 0.01, "the least there is"
        again = parts(grid(1), found.constants).step_s / parts(grid(1), true).step_s
        assert np.abs(again - 1).max() < 0.02

    def test_outliers_move_little(self):
        runs = grid()
        true = parts(runs, constants()).step_s
        spoilt = true.copy()
        spoilt[::10] *= 2
        found = parts(runs, fit_constants(runs, spoilt).constants).step_s
        assert np.median(np.abs(found / true - 1)) < 0.02

    def test_says_what_rows_tell_nothing_of(self):
        runs = configured(microbatch=[1, 2, 4, 8, 16, 32], num_microbatches=8)
        learnt = fit_constants(runs, parts(runs, constants()).step_s).learnt
        assert learnt["flops_per_s"]
        assert not learnt["node_bytes_per_s"] and not learnt["send_weight"]

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
            fit_constants(configured(microbatch=[1, 2]), [1.0, 0.0])
        with pytest.raises(UserError, match=r"5 rows with a step time: .* at least 6"):
            fit(configured(microbatch=[1, 2, 3, 4, 5]), np.ones(5))


class TestPublished:
    def test_rows_not_seen(self):
        """Twenty rows of vTrain's multi-node table, ten folds: within 12 % on average, none by a factor of 1.5."""
        runs, seconds = published()
        found = fit(runs, seconds)
        assert found.residual is None, "too few rows to learn one"
        assert found.out_of_sample.mape < 0.12
        assert np.abs(found.out_of_sample.errors).max() < 0.4
        reached = np.abs(found.out_of_sample.errors) <= found.quantile * found.out_of_sample.scales
        assert 0.85 <= reached.mean() <= 1

    def test_five_times_the_parameters_on_four_times_the_devices(self):
        """Fitted to 3.6 billion parameters on 64 GPUs: 18.4 billion on 256 within 20 %."""
        runs, seconds = published()
        small = runs.ranks == 64
        found = fit(runs.take(small), seconds[small])
        predicted = found.predict(runs.take(~small))
        assert np.abs(predicted.step_s / seconds[~small] - 1).mean() < 0.2
        held = interval.coverage(seconds[~small], predicted.low_s, predicted.high_s)
        assert held >= 5 / 7
        assert predicted.parts.step_s == pytest.approx(predicted.step_s)

    def test_one_group_is_left_out_by_rows(self):
        runs, seconds = published()
        alone, without = fit(runs, seconds, groups=np.zeros(len(seconds))), fit(runs, seconds)
        assert alone.out_of_sample.errors.tolist() == without.out_of_sample.errors.tolist()

    def test_intervals_widen_beyond_what_was_measured(self):
        found = fit(*published())
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


class TestResidual:
    def wiggly(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.random.default_rng(0).uniform(0, 3, (count, 2))
        return rows, 0.2 * np.sin(2 * rows[:, 0])

    def test_learns_what_is_smooth_and_ignores_what_does_not_matter(self):
        rows, errors = self.wiggly(80)
        found = layout_fit.learn(rows[:60], errors[:60])
        mean, deviation = found.at(rows[60:])
        assert np.abs(mean - errors[60:]).max() < 0.05
        assert found.parameters[3] > found.parameters[2], "a longer length where nothing changes"
        assert deviation.max() < 0.1

    def test_returns_to_the_model_far_away(self):
        rows, errors = self.wiggly(60)
        mean, deviation = layout_fit.learn(rows, errors).at(np.array([[300.0, 1.0]]))
        amplitude = np.exp(layout_fit.learn(rows, errors).parameters[0])
        assert abs(mean[0]) < 1e-6
        assert deviation[0] == pytest.approx(amplitude, rel=0.05)

    def test_gradient(self):
        rows, errors = self.wiggly(20)
        squares = (rows[:, None] - rows[None]) ** 2
        at, prior = np.array([-2.0, -3.0, 0.5, 1.0]), np.array([-2.5, -3.9, 1.0, 1.0])
        value, gradient = layout_fit._objective(at, squares, errors, prior)
        for place in range(4):
            step = np.eye(4)[place] * 1e-6
            higher, lower = (layout_fit._objective(at + s, squares, errors, prior)[0] for s in (step, -step))
            assert gradient[place] == pytest.approx((higher - lower) / 2e-6, rel=1e-4, abs=1e-4)
        assert np.isfinite(value)

    def test_is_used_where_it_helps(self):
        runs = grid(count=85)
        odd = (
            parts(runs, constants()).step_s
            * np.where(runs.hidden_size == 2048, 1.5, 1.0)
            * np.where(runs.tensor == 4, 1.3, 1)
        )
        found = fit(runs.take(np.arange(55)), odd[:55])
        assert found.residual is not None
        rest = found.predict(runs.take(np.arange(55, 85)))
        assert np.abs(rest.step_s / odd[55:] - 1).mean() < 0.04
        assert found.quantile_unseen >= found.quantile
        found = replace(found, quantile_unseen=3 * found.quantile)
        wanted = (runs.take(np.arange(1)), configured(microbatch=3, recompute=1))
        scales = [found._missed(one)[1][0] for one in wanted]
        widths = [np.log(one.high_s / one.low_s)[0] / 2 for one in map(found.predict, wanted)]
        assert widths == pytest.approx([found.quantile * scales[0], found.quantile_unseen * scales[1]])
        assert interval.coverage(odd[55:], rest.low_s, rest.high_s) >= 0.75

    def test_shapes_are_those_of_products(self):
        assert shapes(configured(data=[1, 8], tensor=2)) == [(2048, 1024, 2, 2)] * 2

    def test_features_are_logarithms(self):
        assert features(configured(microbatch=8, hidden_size=4096, zero=3))[0, [0, 4, 8]].tolist() == [3, 12, 3]


class TestInterval:
    def test_conformal_quantile(self):
        assert interval.conformal_quantile(np.arange(1, 20), 0.9) == 18  # ceil(20 x 0.9) = 18
        assert interval.conformal_quantile([3.0, 1.0, 2.0], 0.5) == 2
        assert interval.conformal_quantile([1.0, 1.0, 1.0, 1.0], 0.9) == pytest.approx(1.5), "wider than the largest"

    def test_holds_for_the_next(self):
        draws = np.abs(np.random.default_rng(0).standard_normal((2000, 30)))
        held = [row[-1] <= interval.conformal_quantile(row[:-1]) for row in draws]
        assert 0.88 <= np.mean(held) <= 0.93

    def test_doublings(self):
        assert interval.doublings_beyond([4, 8, 16, 64], 16).tolist() == [0, 0, 0, 2]
        measured, wanted = np.array([[0.0, 3.0], [2.0, 5.0]]), np.array([[1.0, 4.0], [5.0, 9.0], [-1.0, 4.0]])
        assert interval.distance(wanted, measured).tolist() == [0, 5, 1]

    def test_coverage(self):
        assert interval.coverage([1, 2, 3, 4], [0, 0, 0, 5], [1, 1, 4, 6]) == 0.5
