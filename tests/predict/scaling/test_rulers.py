"""Series beside rulers: what nothing contradicts goes on, and what was measured is said."""

import numpy as np
import pytest

from bench.rulers import Held, Series, fitted_law, last_point, ours
from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.series import fit


def curve(kind: str, steps: dict[int, float]) -> Curve:
    return Curve("s", kind, 1024.0, tuple(Point(n, (seconds,)) for n, seconds in steps.items()))


@pytest.mark.parametrize("off", [0.99, 1.0, 1.01])
@pytest.mark.parametrize(
    ("kind", "clean"), [("strong", {8: 4.0, 16: 2.0, 32: 1.0}), ("weak", {8: 1.0, 16: 1.0, 32: 1.0})]
)
def test_noise_in_the_last_scale_is_no_law(kind: str, clean: dict[int, float], off: float):
    """1 % more or less at 32 ranks: perfect scaling from there is 0.99 or 1.01 at 256, where 0.785 was once said."""
    model = fit(curve(kind, {**clean, 32: clean[32] * off}))
    found = outlook.row(model, model.at(256))
    assert found["efficiency"] == pytest.approx(1.0, abs=0.025)
    assert found["efficiency_low"] < 0.99 < found["efficiency_high"] < 1.08


def test_what_was_lost_again_and_again_goes_on():
    """Amdahl's law with 5 % of one rank's step that nobody divides."""
    model = fit(curve("strong", {n: 0.95 / n + 0.05 for n in (1, 2, 4, 8, 16)}))
    assert model.at(64).step_s == pytest.approx(0.95 / 64 + 0.05, rel=0.1)
    assert model.linear < 0.01


def test_a_measured_scale_is_answered_by_its_measurement():
    model = fit(curve("strong", {64: 6.1, 128: 3.617, 256: 1.9}))
    row = outlook.row(model, model.at(128))
    assert row["measured_s"] == 3.617 and row["step_s"] == pytest.approx(3.617, rel=1e-12), "through a logarithm"
    assert row["step_s_low"] < 3.617 < row["step_s_high"]


def test_an_efficiency_above_one_has_a_reason():
    model = fit(curve("strong", {8: 4.0, 16: 1.9, 32: 0.95}))
    assert outlook.row(model, model.at(64))["efficiency"] > 1
    (line,) = [line for line in outlook.assumptions(model, [64]) if line.startswith("efficiency above 1")]
    assert line == ("efficiency above 1: 1.053 was measured at 16 ranks, each of which does more a second than at 8")


def test_rulers_by_hand():
    known = Series("s", "weak", np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0]), 3)
    wanted = np.array([8.0, 16.0])
    assert np.exp(last_point(known, wanted)[0]) == pytest.approx(wanted)
    amdahl = Series("s", "strong", np.array([1.0, 2.0, 4.0]), 0.1 + 0.9 / np.array([1.0, 2.0, 4.0]), 3)
    assert np.exp(-fitted_law("amdahl", amdahl, wanted)[0]) == pytest.approx(0.1 + 0.9 / wanted, rel=1e-3)
    assert np.exp(-fitted_law("usl", amdahl, wanted)[0]) == pytest.approx(0.1 + 0.9 / wanted, rel=1e-2)
    value, low, high = ours(known, wanted)
    assert np.exp(value) == pytest.approx(wanted, rel=0.01) and np.all((low < value) & (value < high))


def test_the_interval_score_by_hand():
    """Width, and 20 times what is missed on either side."""
    assert Held("s", 0, "ours", 0.0, -0.1, 0.2).score == pytest.approx(0.3)
    assert Held("s", 0, "ours", 0.0, 0.05, 0.2).score == pytest.approx(0.15 + 20 * 0.05)
    assert Held("s", 0, "ours", 0.0, -0.2, -0.1).score == pytest.approx(0.1 + 20 * 0.1)
