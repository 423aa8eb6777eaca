"""Series that shrink where they cannot: held at what is possible, and told."""

from typing import Any

import numpy as np
import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.outlook import impossible
from benchsuite.predict.scaling.series import fit
from tests.predict.scaling.test_series import made


def series(kind: str, steps: dict[int, float], exchange: dict[int, float] | None = None, **changes: Any) -> Curve:
    """Steps of three repeats, 1 % apart; parts where exchange is given."""
    points = []
    for n, step in steps.items():
        parts = None
        if exchange is not None:
            parts = {"compute": step - exchange.get(n, 0.0), "communication": exchange.get(n, 0.0), "imbalance": 0.0}
        points.append(Point(n, (0.99 * step, step, 1.01 * step), 0.0, parts))
    return Curve("odd", kind, 8, tuple(points), **changes)


def test_a_step_that_falls_in_weak_scaling_is_held():
    """0.30, 0.25, 0.20 s: going on as it fell, 0.15 s at 8 ranks and nothing at 64."""
    model = fit(series("weak", {1: 0.30, 2: 0.25, 4: 0.20}))
    steps = [model.at(n).step_s for n in (1, 2, 4, 8, 16, 32)]
    assert steps[:3] == pytest.approx([0.30, 0.25, 0.20]), "as measured"
    assert np.all(np.diff(steps[2:]) >= -1e-12)
    assert model.at(8).low_s < 0.2, "the interval holds the last that was measured"
    assert (
        "warning: a step without input takes 300.0 ms at 1 and 200.0 ms at 4 ranks, with the same batch a rank: not "
        "modelled, it is held from the largest on; look at what was different at 1"
    ) in outlook.assumptions(model, [8])


def test_a_step_that_falls_faster_than_ranks_grow_is_divided_by_them():
    model = fit(series("strong", {1: 0.40, 2: 0.15, 4: 0.05}))
    works = [n * model.at(n).step_s for n in (4, 8, 16)]
    assert np.all(np.diff(works) >= -1e-12)
    (line,) = impossible(model.curve)
    assert "400.0 ms at 1 and 50.0 ms at 4 ranks, faster than the ranks grow" in line


def test_exchange_that_falls_is_predicted_to_grow():
    model = fit(series("weak", {1: 0.20, 2: 0.26, 4: 0.23}, {2: 0.06, 4: 0.03}))
    exchange = [model.at(n).parts["communication"] for n in (2, 4, 8, 16)]
    assert np.all(np.diff(exchange) >= -1e-12) and 0.03 < exchange[2] < 0.06
    lines = impossible(model.curve)
    assert lines[-1] == (
        "warning: communication not hidden takes 60.0 ms at 2 and 30.0 ms at 4 ranks: more ranks do not shorten it; "
        "predicted to grow from between the two"
    )


@pytest.mark.parametrize("kind", ["weak", "strong"])
@pytest.mark.parametrize("told", [True, False])
def test_nothing_is_said_of_what_can_be(kind: str, told: bool):
    assert impossible(made(kind, told=told)) == []


def test_accidents_are_not_told():
    assert impossible(series("weak", {1: 0.20, 2: 0.193})) == [], "4 %"
    unsteady = Curve("u", "weak", 8, (Point(1, (0.2, 0.3)), Point(2, (0.18, 0.25))))
    assert impossible(unsteady) == [], "14 %, where repeats are 40 % apart"
    small = series("weak", {1: 0.200, 2: 0.203, 4: 0.2015}, {2: 0.003, 4: 0.0015})
    assert impossible(small) == [], "half of the exchange, 1 % of the step"


def test_messages_of_mixed_parallelism_may_shrink():
    """Two tensor-parallel ranks a replica and a batch that more replicas share: half the messages each time."""
    given = ("strong", {2: 0.40, 4: 0.22, 8: 0.13}, {2: 0.08, 4: 0.04, 8: 0.02})
    assert impossible(series(*given, data_share=0.5)) == []
    assert len(impossible(series(*given, data_share=1.0))) == 1
    assert len(impossible(series(*given, data_share=1 / 8))) == 1, "all ranks work on the same samples"
