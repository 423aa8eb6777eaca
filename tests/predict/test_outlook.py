"""Rows and lines of predictions, what is refused, and back-tests."""

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.curve import Curve, Kind, Point
from benchsuite.predict.outlook import back_test, check_reach, predict


def curve(kind: Kind, steps: dict[int, float], batch: float = 1024.0, share: float = 1.0) -> Curve:
    return Curve("s", kind, batch, tuple(Point(n, (seconds,)) for n, seconds in steps.items()), share)


def line(found: Curve, ranks: int, start: str) -> str:
    (told,) = [text for text in predict(found, [ranks])[1] if text.startswith(start)]
    return told


def test_a_row_by_hand() -> None:
    first, measured, beyond = predict(curve("weak", {2: 1.0, 4: 1.25}, batch=8), [2, 4, 8])[0]
    assert (first["efficiency"], first["efficiency_low"], first["measured_s"]) == (1.0, 1.0, 1.0)
    assert measured["step_s"] == pytest.approx(1.25) and measured["efficiency"] == pytest.approx(0.8)
    assert measured["samples_per_s"] == pytest.approx(8 * 4 / 1.25)
    assert beyond["measured_s"] is None and beyond["au"] is None
    assert beyond["samples_per_s_low"] == pytest.approx(64 / beyond["step_s_high"])
    assert beyond["efficiency_high"] == pytest.approx(1 / beyond["step_s_low"])
    assert beyond["efficiency_low"] < beyond["efficiency"] < beyond["efficiency_high"]


def test_strong_scaling_by_hand() -> None:
    (row,) = predict(curve("strong", {1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0}), [16])[0]
    assert row["step_s"] == pytest.approx(0.5, rel=0.02) and row["efficiency"] == pytest.approx(1.0, abs=0.02)
    assert row["samples_per_s"] == pytest.approx(1024 / row["step_s"])


def test_utilization_goes_on_where_every_scale_has_one() -> None:
    """A shared file system feeds three ranks: 4 have 3/4, 8 have 3/8, 16 have 3/16."""
    points = tuple(Point(n, (0.1 / min(1, 3 / n),), min(1.0, 3 / n)) for n in (1, 2, 4, 8))
    measured, beyond = predict(Curve("s", "weak", 8, points), [4, 16])[0]
    assert measured["au"] == pytest.approx(0.75)
    assert beyond["au"] == pytest.approx(3 / 16, rel=0.05) and beyond["au_low"] < 3 / 16 < beyond["au_high"] <= 1
    bare = Curve("s", "weak", 8, (*points[:3], Point(8, (0.27,))))
    assert predict(bare, [16])[0][0]["au"] is None


def test_repeats_that_differ_widen_intervals() -> None:
    def width(off: float) -> float:
        points = tuple(Point(n, (1 - off, 1.0, 1 + off)) for n in (1, 2, 4))
        (row,) = predict(Curve("s", "weak", 8, points), [8])[0]
        return float(np.log(row["step_s_high"] / row["step_s_low"]))

    assert width(0.3) > 2 * width(0.001)


def test_what_it_rests_on_and_cannot_say() -> None:
    two = curve("weak", {1: 1.0, 2: 1.1})
    assert line(two, 4, "fitted to") == (
        "fitted to 1, 2 ranks, weak: the batch of a rank stays; the same machine, network and software at all scales"
    )
    assert line(two, 4, "measured") == "measured: ms/step (samples over their rate) 1000.0 at 1, 1100.0 at 2 ranks"
    assert line(two, 4, "2 scales") == "2 scales do not show how a loss grows: measure a third"
    assert not any(text.startswith(("beyond", "2 scales")) for text in predict(two, [2])[1])
    told = line(curve("strong", {8: 4.0, 16: 1.9, 32: 0.95}), 64, "efficiency above 1")
    assert told.startswith("efficiency above 1: 1.053 was measured at 16 ranks") and told.endswith("different at 8")
    laws = line(curve("strong", {n: 0.95 / n + 0.05 for n in (1, 2, 4, 8, 16)}), 64, "beyond 16 ranks")
    assert "explains the measurements: a part that ranks do not shorten " in laws
    assert laws.endswith("a measurement at 64 ranks would tighten the interval most")


@pytest.mark.parametrize(
    ("found", "ranks", "said"),
    [
        (curve("weak", {1: 1.0, 4: 1.0}), 33, "33 ranks are 8.25 times the 4 measured; allowed: up to 8 times"),
        (curve("strong", {1: 1.0, 4: 0.3}), 3, "3 ranks cannot share 1024 samples a step evenly; take a divisor"),
        (curve("strong", {3: 1.0, 4: 0.3}), 5, "evenly, nor could all of those measured; where ranks share samples"),
    ],
)
def test_ranks_that_are_refused(found: Curve, ranks: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_reach(found, [1, ranks], far=False)


def test_ranks_that_are_allowed() -> None:
    check_reach(curve("weak", {1: 1.0, 4: 1.0}), [33, 1000], far=True)
    check_reach(curve("strong", {280: 1.0, 560: 0.6}, batch=6, share=1 / 280), [840], far=False)


def test_a_single_scale_is_refused() -> None:
    with pytest.raises(UserError, match="s: measured at 4 ranks: a prediction needs at least 2 scales, such as"):
        predict(curve("weak", {4: 1.0}), [8])


def test_a_back_test_knows_nothing_of_what_it_hides() -> None:
    steps = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}
    (row,), (fitted, summary) = back_test(curve("weak", steps))
    (other,), _ = back_test(curve("weak", {**steps, 8: 3.0}))
    assert fitted == "fitted to 1, 2, 4 ranks" and row["ranks"] == 8 and row["within"] and abs(row["error"]) < 0.02
    assert other["step_s"] == row["step_s"] and not other["within"]
    assert other["error"] == pytest.approx(row["step_s"] / 3 - 1)
    assert summary.startswith("1 predicted: error median ") and summary.endswith("; 100% within their 90 % intervals")
    with pytest.raises(UserError, match="a back-test leaves out those above 2 and needs 2 scales below"):
        back_test(curve("weak", {2: 1.0, 4: 1.0}))
