"""Bubbles and microbatches in flight: published figures, and schedules simulated from their dependencies."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from benchsuite.predict.theory import schedules
from benchsuite_plan.theory import pipeline
from benchsuite_plan.theory.pipeline import SCHEDULES, bubble_fraction, bubble_s, in_flight
from tests.helpers.published_tables import all_rows

TABLE = [
    # stages, microbatches, chunks, bubble over ideal time, bubble over total time
    (4, 8, 1, 0.375, 0.27273),
    (4, 8, 2, 0.1875, 0.15789),
    (8, 32, 1, 0.21875, 0.17949),
    (2, 1, 1, 1.0, 0.5),
]
"""Narayanan et al. 2021 (arXiv:2104.04473), section 2.2: (p - 1)/(v m) and (p - 1)/(v m + p - 1)."""
SIZES = [(1, 1), (2, 4), (3, 6), (4, 8), (4, 12), (8, 16), (8, 32)]
EQUAL, UNLIKE = (1.0, 1.0, 1.0), (1.0, 1.25, 0.75)
"""F, B, W: sums of quarters, so that simulated times are exact."""
CHUNKED = [("interleaved", 2), ("interleaved", 4), ("zero_bubble", 2), ("zero_bubble", 4), ("1f1b", 2)]
WHOLE = [(name, 1) for name in SCHEDULES if name != "zbv"]


class TestPublished:
    @pytest.mark.parametrize(("p", "m", "v", "ideal", "total"), TABLE)
    def test_bubble(self, p: int, m: int, v: int, ideal: float, total: float) -> None:
        name = "interleaved" if v > 1 else "1f1b"
        found = bubble_fraction(schedule=name, num_stages=p, num_microbatches=m, interleave=v)
        assert found == pytest.approx(total, abs=5e-6)
        assert found / (1 - found) == pytest.approx(ideal, abs=5e-6)
        assert bubble_fraction("gpipe", p, m * v) == found

    def test_all_rows(self) -> None:
        rows = all_rows("pipeline_bubble")
        for row in rows:
            self.test_bubble(*row.values())
        assert len(rows) == len(TABLE)

    def test_zero_bubble_readme(self) -> None:
        """F = B = W, bubble of 1F1B b: ZB-H1 a third of it, ZB-H2 and ZBV none; memory 1, 1, 2 and 1 times."""
        p, m = 8, 64
        whole = bubble_s("1f1b", p, m)
        assert bubble_s("zb-h1", p, m) == whole / 3
        assert bubble_s("zb-h2", p, m) == bubble_s("zbv", p, m) == 0
        assert [in_flight(name, p, m) / p for name in ("1f1b", "zb-h1", "zb-h2", "zbv")] == [1, 1, 15 / 8, 1]

    @pytest.mark.parametrize("p", [1, 2, 4, 16])
    def test_without_microbatches_one_stage_works_at_a_time(self, p: int) -> None:
        """Naive model parallelism: utilization 1 / p, as GPipe with one microbatch."""
        assert 1 - bubble_fraction("naive", p, 6) == pytest.approx(1 / p)
        assert 1 - bubble_fraction("gpipe", p, 1) == pytest.approx(1 / p)


class TestAgainstSimulation:
    @pytest.mark.parametrize(("name", "v"), WHOLE + CHUNKED)
    @pytest.mark.parametrize(("p", "m"), SIZES)
    @pytest.mark.parametrize("times", [EQUAL, UNLIKE])
    def test_bubble(self, name: str, v: int, p: int, m: int, times: tuple[float, ...]) -> None:
        if name == "zb-h2" and m < 2 * p - 1:
            pytest.skip("zb-h2 fills its pipe with 2p - 1 microbatches: fewer are no case of the closed form")
        found = schedules.schedule(name, p, m, v, *times)
        assert max(schedules.bubbles(found)) == pytest.approx(float(bubble_s(name, p, m, v, *times)), abs=1e-9)
        if name in ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zero_bubble"):
            assert schedules.makespan(found) == pytest.approx(float(pipeline.step_s(name, p, m, v, *times)))

    @pytest.mark.parametrize(("p", "m"), [size for size in SIZES if size[1] >= 2 * size[0] - 1])
    def test_zbv_has_none(self, p: int, m: int) -> None:
        assert max(schedules.bubbles(schedules.schedule("zbv", p, m))) == bubble_s("zbv", p, m) == 0

    @pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zero_bubble"])
    @pytest.mark.parametrize("times", list(product((0.5, 1.0, 2.0), (0.5, 1.0, 2.0), (0.0, 0.5, 1.5, 3.0))))
    def test_bubble_of_any_durations(self, name: str, times: tuple[float, ...]) -> None:
        found = schedules.schedule(name, 4, 16, 1, *times)
        assert max(schedules.bubbles(found)) == pytest.approx(float(bubble_s(name, 4, 16, 1, *times)))

    @pytest.mark.parametrize(("name", "v"), [*WHOLE, *CHUNKED, ("zbv", 1)])
    @pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 4), (2, 2)])
    def test_in_flight(self, name: str, v: int, p: int, m: int) -> None:
        if name == "zbv" and m < 2 * p - 1:
            pytest.skip("zbv cannot run so few microbatches")
        held = schedules.peak_in_flight(schedules.schedule(name, p, m, v))
        assert held == pytest.approx(in_flight(name, p, m, np.arange(p), v).tolist())


class TestForms:
    def test_step_by_hand(self) -> None:
        """4 stages, 8 microbatches of 1 + 2 s: (8 + 3) 3."""
        assert pipeline.step_s("1f1b", 4, 8, forward_s=1, backward_s=1.5, weight_s=0.5) == 33
        assert pipeline.step_s("interleaved", 4, 8, 2, 1, 1.5, 0.5) == 24 + 4.5

    def test_arrays(self) -> None:
        found = bubble_fraction("1f1b", [2, 4, 8], [[8], [64]])
        assert found.shape == (2, 3) and found[1, 2] == bubble_fraction("1f1b", 8, 64)
        assert bubble_fraction("interleaved", 4, 8, [1, 2]).tolist() == pytest.approx([3 / 11, 3 / 19])
        for name in SCHEDULES:
            assert bubble_fraction(name, [[1], [2]], [4, 6, 8]).shape == (2, 3), name
            assert in_flight(name, [[1], [2]], [4, 6, 8]).shape == (2, 3), name

    def test_names_are_read_as_papers_write_them(self) -> None:
        assert bubble_fraction("1F1B", 4, 8) == bubble_fraction("GPipe", 4, 8) == pytest.approx(3 / 11)
        assert bubble_fraction("ZB_H1", 4, 8) == bubble_fraction("zb-h1", 4, 8)
        assert schedules.schedule("Zero-Bubble", 4, 8) == schedules.schedule("zero_bubble", 4, 8)

    @pytest.mark.parametrize(
        ("given", "line"),
        [
            (("1f1b", 0, 8), "num_stages 0 is not allowed; allowed: a whole number, 1 or above"),
            (("2f2b", 4, 8), "schedule '2f2b' is unknown; nearest: 1f1b; allowed: naive, gpipe, 1f1b, .*"),
            (
                ("gpipe", 4, 8, 2),
                "interleave 2 with schedule 'gpipe' is not allowed; allowed: 1, or interleaved, zero_b",
            ),
            (("interleaved", 4, 6, 2), "num_microbatches % num_stages is not 0; allowed: multiples of num_stages"),
            (("zbv", 4, 8, 1, 1.0, 2.0, 1.0), "zbv has a closed form only where .* are equal; simulate it"),
            (("zbv", 4, 6), r"zbv with 6 microbatches on 4 stages has no closed form; allowed: 2p - 1 = 7 or more"),
            (("zb-h2", [2, 8], 8), r"zb-h2 with 8 microbatches on 8 stages has no closed form; .* = 15 or more; simu"),
            (
                ("zb-h1", 8, [8, 4]),
                "zb-h1 with 4 microbatches on 8 stages has no closed form; allowed: p = 8 or more; sim",
            ),
            (("1f1b", 4, 8, 1, -1.0), "forward_s -1 is not allowed; allowed: a finite number, 0 or above"),
        ],
    )
    def test_refuses(self, given: tuple[Any, ...], line: str) -> None:
        with pytest.raises(ValueError, match=line):
            bubble_fraction(*given)

    def test_zb_h1_holds_from_as_many_microbatches_as_stages_on(self) -> None:
        """Three microbatches on four stages wait a unit longer than the form says, four do not."""
        waits = [max(schedules.bubbles(schedules.schedule("zb-h1", 4, m))) for m in (3, 4, 5)]
        assert waits == [4, bubble_s("zb-h1", 4, 4), bubble_s("zb-h1", 4, 5)] == [4, 3, 3]

    def test_refuses_a_stage_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match="stage 4 is not allowed; allowed: 0 to num_stages - 1"):
            in_flight("1f1b", 4, 8, stage=4)
