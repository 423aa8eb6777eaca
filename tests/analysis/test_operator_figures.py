"""Figures of operators from what ranks have counted."""

from typing import Any

import pytest

from benchsuite.analysis.operator_figures import operator_figures
from benchsuite.inside.samples import RankSamples

RANK = {
    "contraction": {"flops": 900, "num_bytes": 40, "operators": 2, "seconds": 0.5},
    "normalisation": {"flops": 60, "num_bytes": 20, "operators": 1, "seconds": 0.3},
    "element_wise": {"flops": 40, "num_bytes": 30, "operators": 3, "seconds": 0.15},
    "other": {"flops": 0, "num_bytes": 10, "operators": 4, "seconds": 0.05},
}


def rank(**changes: Any) -> RankSamples:
    return RankSamples(0, "ok", operators={name: {**one, **changes} for name, one in RANK.items()})


def test_of_two_ranks() -> None:
    found = operator_figures({"step_s_mean": 2.0}, [rank(), rank()])
    assert (found["operator_flops_per_step"], found["operator_bytes_per_step"]) == (2000, 200)
    assert (found["arithmetic_intensity"], found["attained_flops_per_s"]) == (10, 2000 / 2.0 / 2)
    shares = [found[f"{name}_flops_fraction"] for name in ("contraction", "normalisation", "element_wise")]
    assert shares == pytest.approx([0.9, 0.06, 0.04])
    assert [found[f"{name}_time_fraction"] for name in RANK] == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_the_step_with_its_input_in_memory_counts() -> None:
    found = operator_figures({"step_s_mean": 4.0, "ceiling_step_s": 2.0}, [rank()])
    assert found["attained_flops_per_s"] == 500


def test_what_is_not_known_is_missing() -> None:
    compiled = operator_figures({"step_s_mean": 2.0}, [rank(seconds=None)])
    assert compiled["contraction_flops_fraction"] == 0.9 and "contraction_time_fraction" not in compiled
    assert operator_figures({"step_s_mean": 2.0}, [rank(), RankSamples(1, "ok")]) == {}
    nothing = operator_figures({}, [rank(flops=0, num_bytes=0, seconds=0.0)])
    assert nothing["arithmetic_intensity"] is nothing["attained_flops_per_s"] is None
    assert nothing["contraction_flops_fraction"] is nothing["contraction_time_fraction"] is None
