"""Batches that were not measured, from two that were: the line, how far it may be off, and what is refused."""

from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.batches import bounds, of_batch
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.from_store import from_series
from benchsuite.predict.scaling.series import fit
from benchsuite.results.scaling.series import find_series
from tests.results.scaled import frame, made_trial


def trials(batch: int, step_s: float, ranks: tuple[int, ...] = (1, 2, 4), **figures: Any) -> list[Any]:
    """Three repeats a number of ranks, 1 % apart; no exchange."""
    return [
        made_trial(n, batch * n / (step_s * (1 + noise)), k, spec={"batch_size": batch}, figures=figures)
        for n in ranks
        for k, noise in enumerate((-0.01, 0.0, 0.01))
    ]


def made(batch: int, *records: Any, limit: float | None = None) -> Curve:
    """The one curve of a batch."""
    found = [one for one in find_series(frame(*records)) if one.kind == "weak"]
    curves = [from_series(one, f"weak · x · {one.batch} per rank", {}, limit, False) for one in found]
    ((curve,), left_out) = of_batch(found, curves, batch)
    assert left_out == []
    return curve


@pytest.mark.parametrize("batch", [6, 12, 24, 32])
def test_a_step_that_grows_linearly(batch: int):
    """20 ms and 10 more for each sample, measured at 8 and 16 of them."""
    curve = made(batch, *trials(8, 0.10), *trials(16, 0.18))
    found = fit(curve).at(8)
    assert found.step_s == pytest.approx(0.02 + 0.01 * batch, rel=0.01)
    assert found.samples == 8 * batch and found.low_s < found.step_s < found.high_s
    assert (curve.title, curve.batches) == (f"weak · x · {batch} per rank", (8, 16))
    assert [point.ranks for point in curve.points] == [1, 2, 4]


def test_what_was_measured_is_not_made():
    curve = made(16, *trials(8, 0.10), *trials(16, 0.18), *trials(32, 0.34))
    assert curve.batches == () and curve.points[0].middle_s == pytest.approx(0.18)
    assert outlook.row(fit(curve), fit(curve).at(2))["measured_s"] == pytest.approx(0.18)


def test_the_two_around_it_are_taken():
    records = [*trials(4, 0.07), *trials(8, 0.10), *trials(16, 0.30), *trials(32, 0.60)]
    assert made(12, *records).points[0].middle_s == pytest.approx(0.20), "between 8 and 16"
    assert made(48, *records).batches == (16, 32)
    assert made(3, *records).batches == (4, 8)


@pytest.mark.parametrize(
    ("few_s", "many_s", "batch", "expected"),
    [
        (0.10, 0.18, 12, (0.135, 0.15)),  # no less than 12/16 of 180 ms, no more than 12/8 of 100
        (0.10, 0.12, 12, (0.10, 0.12)),  # nor less than 100 ms, nor more than 120
        (0.10, 0.18, 32, (0.32, 0.36)),  # the line gives 340: no more than twice 180 ms, as far below
        (0.10, 0.10, 32, (0.10, 0.20)),  # the line gives 100: what launches hide comes to light somewhere
        (0.10, 0.18, 4, (0.05, 0.10)),
        (0.10, 0.24, 12, (0.15, 0.18)),  # a sample takes longer in the larger batch: the line, 170 ms, lies between
        (0.10, 0.24, 32, (0.48, 0.52)),
    ],
)
def test_bounds_by_hand(few_s: float, many_s: float, batch: float, expected: tuple[float, float]):
    assert bounds(few_s, many_s, (8, 16), batch) == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "truth"), [(12, 0.12), (32, 0.32), (4, 0.10)])
def test_a_step_that_small_batches_do_not_fill_is_within_its_interval(batch: int, truth: float):
    """The longer of 100 ms and 10 a sample: the line through 8 and 16 gives 130, 280 and 70 ms."""
    found = fit(made(batch, *trials(8, 0.10), *trials(16, 0.16))).at(8)
    assert found.step_s == pytest.approx(0.04 + 0.0075 * batch, rel=0.01)
    assert found.low_s < truth < found.high_s


def test_beyond_the_batches_noise_counts_for_more():
    """32 from 8 and 16 is 3 times one step less 2 times another: 1 % of each are up to 5 % of 100 ms + 8 n."""
    near, far = (made(batch, *trials(8, 0.10), *trials(16, 0.18)) for batch in (12, 32))
    assert near.points[0].step_s == pytest.approx((0.1386, 0.14, 0.1414))
    assert far.points[0].step_s == pytest.approx((3 * 0.1782 - 2 * 0.101, 0.34, 3 * 0.1818 - 2 * 0.099))


def test_parts_input_and_utilization_are_on_the_line_too():
    """At 12 samples: 140 ms, 30 of them waiting for 12 MB a rank; AU 0.75 and 0.8 of what does not wait."""

    def records(batch: int, step_s: float, load_s: float, au: float) -> list[Any]:
        figures = {"load_s": load_s, "communication_s": 0.01, "step_s_mean": step_s, "au": au, "backward_s": step_s / 2}
        return [
            made_trial(
                n,
                batch * n / step_s,
                spec={"batch_size": batch, "data": {"source": "storage"}},
                figures=figures | {"io_bytes_per_s": 1e6 * batch * n / step_s},
            )
            for n in (1, 2)
        ]

    curve = made(12, *records(8, 0.10, 0.02, 0.8), *records(16, 0.18, 0.04, 0.7), limit=1e8)
    one, two = curve.points
    assert (two.step_s, two.load_s, two.backward_s) == (
        pytest.approx((0.14,)),
        pytest.approx(0.03),
        pytest.approx(0.07),
    )
    assert two.io_bytes_per_s == pytest.approx(24e6 / 0.14)
    assert two.parts == pytest.approx({"compute": 0.10, "communication": 0.01, "imbalance": 0.0})
    assert one.au == pytest.approx((0.8 * 0.10 / 0.08 + 0.7 * 0.18 / 0.14) / 2 * 0.11 / 0.14)
    found = fit(curve).at(16)
    assert found.step_s == pytest.approx(16 * 12e6 / 1e8, rel=1e-6), "192 MB at the limit of the shared file system"


def test_what_it_rests_on_is_told_and_nothing_is_called_measured():
    curve = made(12, *trials(8, 0.10), *trials(16, 0.18))
    model = fit(curve)
    lines = outlook.assumptions(model, [8])
    (line,) = [line for line in lines if line.startswith("no trial has 12 samples a rank")]
    assert "on the straight line through those of 8 and 16 at the same ranks" in line
    assert "the interval holds 4% less to 7% more" in line, "135 and 150 ms"
    assert outlook.row(model, model.at(4))["measured_s"] is None
    assert not [line for line in lines if line.startswith("measured:")]


@pytest.mark.parametrize(
    ("batch", "records", "line"),
    [
        (
            12,
            trials(8, 0.1),
            "measured with 8 samples a rank alone, which do not tell what more or fewer take; measure",
        ),
        (33, [*trials(8, 0.1), *trials(16, 0.18)], "measured with 8, 16 samples a rank; allowed: 4 to 32"),
        (3, [*trials(8, 0.1), *trials(16, 0.18)], "allowed: 4 to 32"),
        (13, [*trials(8, 0.1), *trials(10, 0.12)], "allowed: 6 to 14"),
        (12, [*trials(8, 0.1), *trials(16, 0.08)], "at 1 ranks a step of 16 samples takes 80.0 ms, one of 8 100.0 ms"),
        (12, [*trials(8, 0.1, (1, 2)), *trials(16, 0.18, (2, 4))], "at 1 of the same numbers of ranks; a prediction"),
    ],
)
def test_refusals(batch: int, records: list[Any], line: str):
    if batch == 13:
        assert made(13, *records).batches == (8, 10)
        batch = 15
    with pytest.raises(UserError, match=f"--batch-size {batch}: weak · x · {batch} per rank: .*{line}"):
        made(batch, *records)


def test_series_of_one_global_batch_tell_nothing():
    records = [made_trial(n, 100.0 * n, spec={"batch_size": None, "global_batch_size": 8}) for n in (1, 2, 4)]
    found = [one for one in find_series(frame(*records)) if one.kind == "strong"]
    curves = [from_series(one, "s", {}, None, False) for one in found]
    with pytest.raises(UserError, match=r"--batch-size 4: no series keeps the batch of a rank \(weak scaling\)"):
        of_batch(found, curves, 4)
