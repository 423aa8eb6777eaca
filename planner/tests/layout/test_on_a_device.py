"""What a plan says of one device, beside steps and peaks that `make bench SECTIONS=planned` measured on an H200."""

import pytest

from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Choices, Job, Recipe
from benchsuite_plan.layout.layout_search import Planned, plan

MEASURED = [
    ("bert-large", 32, 1, "none", 0.1121, 22.64e9),
    ("gpt2", 4, 1, "none", 0.0255, 5.27e9),
    ("gpt2", 32, 1, "none", 0.1352, 29.35e9),
    ("gpt2-medium", 8, 1, "none", 0.0773, 16.46e9),
    ("gpt2-medium", 8, 1, "selective", 0.1646, 13.44e9),
    ("gpt2-medium", 8, 1, "full", 0.0992, 9.40e9),
    ("gpt2-large", 8, 1, "none", 0.1419, 28.80e9),
    ("gpt2-large", 8, 4, "none", 0.5246, 31.90e9),
]


def planned(model: models.Model, size: int, count: int, recompute: str, recipe: Recipe = "trial") -> Planned:
    job = Job(model, machines.load("dgx-h200"), 1, size * count, recipe=recipe)
    return plan(job, Choices(zero=(0,), recompute=(recompute,), microbatch=(size,))).first


@pytest.mark.parametrize(("name", "size", "count", "recompute", "step_s", "peak_bytes"), MEASURED)
def test_steps_and_peaks(name: str, size: int, count: int, recompute: str, step_s: float, peak_bytes: float) -> None:
    found = planned(models.load(name), size, count, recompute)
    assert found.step_s.low <= step_s <= found.step_s.high
    assert found.step_s.value == pytest.approx(step_s, rel=0.08)
    assert found.memory_bytes == pytest.approx(peak_bytes, rel=0.04)


def test_a_vocabulary_of_no_multiple_of_8_is_slow_where_nobody_pads_it() -> None:
    """With 50,304 words the step of 135.8 ms took 84.8."""
    odd = models.load("gpt2")
    even = odd.model_copy(update={"vocab": 50304})
    gained = planned(odd, 32, 1, "none").step_s.value - planned(even, 32, 1, "none").step_s.value
    assert gained == pytest.approx(0.051, rel=0.15)
    padded = [planned(each, 32, 1, "none", "megatron").step_s.value for each in (odd, even)]
    assert padded[0] == pytest.approx(padded[1])
