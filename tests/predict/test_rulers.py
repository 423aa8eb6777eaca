"""The benchmark of predictions: rulers by hand, and the promise that none of them is better by more than a tenth."""

import numpy as np
import pandas as pd
import pytest

from bench.predict import (
    LEAST_COVERED,
    MOST_OVER,
    Held,
    Series,
    fitted_law,
    frame,
    last_point,
    over_best,
    published_series,
    simulated,
)


def test_rulers_by_hand() -> None:
    known = Series("s", "weak", np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0]), 3)
    wanted = np.array([8.0, 16.0])
    assert np.exp(last_point(known, wanted)[0]) == pytest.approx(wanted)
    amdahl = Series("s", "strong", np.array([1.0, 2.0, 4.0]), 0.1 + 0.9 / np.array([1.0, 2.0, 4.0]), 3)
    assert np.exp(-fitted_law("amdahl", amdahl, wanted)[0]) == pytest.approx(0.1 + 0.9 / wanted, rel=1e-3)
    assert np.exp(-fitted_law("usl", amdahl, wanted)[0]) == pytest.approx(0.1 + 0.9 / wanted, rel=1e-2)


def test_the_interval_score_by_hand() -> None:
    """Width, and 20 times what is missed on either side."""
    assert Held("s", 0, "ours", 0.0, -0.1, 0.2).score == pytest.approx(0.3)
    assert Held("s", 0, "ours", 0.0, 0.05, 0.2).score == pytest.approx(0.15 + 20 * 0.05)
    assert Held("s", 0, "ours", 0.0, -0.2, -0.1).score == pytest.approx(0.1 + 20 * 0.1)


def no_ruler_is_better(rows: pd.DataFrame) -> None:
    assert over_best(rows, "off") <= MOST_OVER and over_best(rows, "relative") <= MOST_OVER


def test_no_ruler_is_better_on_simulated_series() -> None:
    """Every sixth series, of a seed that no constant was chosen with."""
    no_ruler_is_better(frame([*simulated(seed=8)][::6]))


def test_no_ruler_is_better_on_published_series(published: dict[str, pd.DataFrame]) -> None:
    """Every third series; `make bench SECTIONS=predict` has them all."""
    rows = frame([*published_series(published)][::3])
    no_ruler_is_better(rows)
    assert rows[rows["name"] == "ours"]["held"].mean() >= LEAST_COVERED
