"""Legal layouts, listed by hand."""

from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.layout import models
from benchsuite.predict.layout.candidates import Choices, divisors, padded_vocab, valid_layouts
from tests.predict.small import machine, model


class TestLegal:
    def degrees(self, **numbers: Any) -> set[tuple[int, int, int]]:
        found = valid_layouts(
            numbers.pop("model", model()), machine(), numbers.pop("devices", 4), 4, Choices(**numbers)
        )
        return {(int(t), int(p), int(d)) for t, p, d in zip(found.tp, found.pp, found.dp, strict=True)}

    def test_all_degrees_of_four_devices(self):
        assert self.degrees() == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}

    def test_tensor_parallel_divides_heads_and_nodes(self):
        assert self.degrees(model=model(heads=2)) == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1)}
        grouped = model(kv_heads=1)
        assert {tp for tp, _, _ in self.degrees(model=grouped)} == {1}
        assert {tp for tp, _, _ in self.degrees(model=model(ffn_hidden=510))} == {1, 2}
        three = machine(devices_per_node=3)
        assert {int(tp) for tp in valid_layouts(model(heads=12, hidden=144), three, 12, 12, Choices()).tp} == {
            1,
            3,
            6,
            12,
        }

    def test_pipeline_divides_layers(self):
        assert {pp for _, pp, _ in self.degrees(model=model(layers=3))} == {1}

    def test_what_is_fixed_stays(self):
        assert self.degrees(tensor_parallel=(2,)) == {(2, 1, 2), (2, 2, 1)}
        assert self.degrees(pipeline_parallel=(2,), tensor_parallel=(1,)) == {(1, 2, 2)}

    def test_microbatches_make_up_the_batch(self):
        found = valid_layouts(model(), machine(), 2, 12, Choices(zero=(0,), recompute=("none",), interleave=(1,)))
        assert np.all(found.dp * found.microbatch * found.num_microbatches == 12)
        alone = found.microbatch[(found.tp == 2)]
        assert sorted(alone) == divisors(12)

    def test_interleaving_needs_stages_and_whole_rounds(self):
        found = valid_layouts(model(), machine(), 2, 8, Choices(zero=(0,), recompute=("none",), pipeline_parallel=(2,)))
        chunks = {(int(m), int(v)) for m, v in zip(found.num_microbatches, found.interleave, strict=True)}
        assert chunks == {(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2)}
        asked = valid_layouts(model(), machine(), 2, 8, Choices(interleave=(2,)))
        assert set(asked.interleave) == {2} == set(asked.pp), "where it cannot be interleaved, there is no layout"

    def test_zero_2_and_3_without_pipelines_only(self):
        found = valid_layouts(model(), machine(), 4, 8, Choices())
        assert set(found.zero[found.pp > 1]) == {0, 1}
        assert set(found.zero[found.dp == 4]) == {0, 1, 2, 3}
        assert set(found.zero[found.dp == 1]) == {0}, "there is nothing to shard"

    def test_convolutions_are_replicated(self):
        found = valid_layouts(models.load("resnet50"), machine(), 4, 64, Choices())
        assert set(found.tp * found.pp) == {1} and set(found.recompute) == {0}
        with pytest.raises(UserError, match=r"--recompute full: not modelled for resnet50 \(conv\)"):
            valid_layouts(models.load("resnet50"), machine(), 4, 64, Choices(recompute=("full",)))

    def test_padded_vocabulary(self):
        assert [*padded_vocab(50257, np.array([1, 2, 8]))] == [50304, 50432, 51200]
        assert [*padded_vocab(None, np.array([1, 2]))] == [0, 0]

    @pytest.mark.parametrize(
        ("numbers", "words"),
        [
            ((4, 3, Choices(tensor_parallel=(1,), pipeline_parallel=(2,))), "nearest: 4"),
            ((14, 14, Choices(pipeline_parallel=(3,))), "a divisor of 4 layers"),
            ((4, 4, Choices(zero=(3,), pipeline_parallel=(2,))), "zero 0 or 1"),
            ((4, 4, Choices(interleave=(7,))), r"interleave 7: .* pp x interleave the 4 layers"),
            ((4, 4, Choices(interleave=(2,), pipeline_parallel=(1,))), r"interleave 2: .* with 2 stages or more"),
        ],
    )
    def test_nothing_is_legal(self, numbers: tuple[int, int, Choices], words: str):
        with pytest.raises(UserError, match=words):
            valid_layouts(model(), machine(), *numbers)
