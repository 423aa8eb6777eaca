"""What was measured at the largest scale is not taken back beyond it."""

import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.series import fit


def jump(kind: str = "weak", told: bool = True) -> Curve:
    """20.5 ms at one rank, 55.2 at two: cores that two ranks share, which nothing in the model explains."""
    parts = ({"compute": 0.0205, "communication": 0.0, "imbalance": 0.0}, {"compute": 0.0452, "communication": 0.01})
    points = (
        Point(1, (0.0203, 0.0205, 0.0207), 0.0, parts[0] if told else None),
        Point(2, (0.0548, 0.0552, 0.0556), 0.0, {**parts[1], "imbalance": 0.0} if told else None),
    )
    return Curve("jump", kind, 2, points, data_share=1.0)


@pytest.mark.parametrize("told", [True, False])
def test_more_ranks_are_no_faster_than_the_most_measured(told: bool):
    model = fit(jump(told=told))
    steps = [model.at(n).step_s for n in (2, 4, 8)]
    assert steps[0] == pytest.approx(0.0552, rel=0.05) and steps == sorted(steps)
    for n in (2, 4):
        found = model.at(n)
        assert found.low_s < found.step_s < found.high_s
        assert sum(found.parts.values()) == pytest.approx(found.step_s)
        assert outlook.row(model, found)["efficiency"] < 0.40


def test_it_is_told_with_what_was_measured():
    lines = outlook.assumptions(fit(jump()), [4])
    assert "measured: ms/step (samples over their rate) 20.5 at 1, 55.2 at 2 ranks; efficiency 0.37 at 2" in lines
    (line,) = [line for line in lines if "more than the model explains" in line]
    assert line.startswith("warning: at 2 ranks the step takes ")
    assert line.endswith("% more than the model explains: at more ranks that is held, not taken back")


def test_a_faster_network_shortens_what_is_missed_of_the_exchange_alone():
    model = fit(jump())
    one, ten = (model.at(4, network=speed).parts for speed in (1.0, 10.0))
    assert ten["compute"] == pytest.approx(one["compute"])
    assert ten["communication"] == pytest.approx(one["communication"] / 10)


def test_a_fit_that_is_near_is_left_alone():
    points = tuple(Point(n, (step,)) for n, step in ((1, 0.100), (2, 0.110), (4, 0.116)))
    model = fit(Curve("near", "weak", 8, points))
    assert not [line for line in outlook.assumptions(model, [8]) if "explains" in line]
