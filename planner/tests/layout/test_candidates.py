"""Legal layouts, listed by hand."""

from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import models
from benchsuite_plan.layout.candidates import Choices, divisors, padded_vocab, stage_layers, valid_layouts
from planner.tests.small import machine, model


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

    def test_stages_may_hold_unequally_many_layers(self):
        assert {pp for _, pp, _ in self.degrees(model=model(layers=3))} == {1, 2}, "embedding and 2, 1 and head"
        assert {pp for _, pp, _ in self.degrees(model=model(layers=3), ends_count=(False,))} == {1}

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

    def test_every_stage_of_zero_with_pipelines_too(self):
        """Whether a trial runs it, trials say."""
        found = valid_layouts(model(), machine(), 4, 8, Choices())
        assert set(found.zero[found.pp > 1]) == {0, 1, 2, 3}
        assert set(found.zero[found.dp == 4]) == {0, 1, 2, 3}
        assert set(found.zero[found.dp == 1]) == {0}, "there is nothing to shard"

    def test_convolutions_are_replicated(self):
        found = valid_layouts(models.load("resnet50"), machine(), 4, 64, Choices())
        assert set(found.tp * found.pp) == {1} and set(found.recompute) == {0}
        with pytest.raises(UserError, match=r"--recompute full: not modelled for resnet50 \(conv\)"):
            valid_layouts(models.load("resnet50"), machine(), 4, 64, Choices(recompute=("full",)))

    def test_layers_of_stages(self):
        """As Megatron-LM's account-for options and trials' cut deal them: embedding and head count as a layer each."""
        assert stage_layers(126, 16, 1, True) == (7, *[8] * 14, 7)
        assert stage_layers(70, 12, 1, True) == (5, *[6] * 10, 5)
        assert stage_layers(32, 4, 1, True) == (8, 9, 8, 7), "34 pieces: the first stages are the longer"
        assert stage_layers(126, 8, 8, True) == (15, *[16] * 6, 15), "64 stages of 2 pieces"
        assert (stage_layers(96, 12, 1, False), stage_layers(126, 16, 1, False)) == ((8,) * 12, ())
        assert stage_layers(4, 2, 1, True, first_ends=2) == (2, 2), "a table of positions is a piece too"
        assert stage_layers(2, 4, 1, True) == ()

    @pytest.mark.parametrize("layers", range(2, 30))
    def test_stages_are_those_that_trials_cut(self, layers: int):
        from benchsuite.workloads.parallel.pipeline import cut

        for pp in range(2, 9):
            for v in (1, 2):
                pieces = ["embedding", *["layer"] * layers, "head"]
                stages = [cut(pieces, number, pp * v) for number in range(pp * v)]  # type: ignore[arg-type]
                ranks = tuple(sum(list(stage).count("layer") for stage in stages[rank::pp]) for rank in range(pp))
                found = stage_layers(layers, pp, v, True)
                assert found in ((), ranks) and (found or min(map(len, stages)) < 2)

    def test_experts_are_dealt_over_replicas(self):
        found = valid_layouts(model(num_experts=4, top_k=2), machine(), 8, 8, Choices())
        assert set(found.tp) == {1} and set(found.ep) == {1, 2, 4} and np.all(found.dp % found.ep == 0)

    def test_long_sequences_are_shared(self):
        long = valid_layouts(model(seq_len=16384), machine(), 8, 8, Choices())
        assert set(long.cp) == {1, 2, 4} and np.all(long.tp * long.cp * long.pp * long.dp == 8)
        asked = valid_layouts(model(), machine(), 8, 8, Choices(context_parallel=(2,)))
        assert set(asked.cp) == {2}

    def test_padded_vocabulary(self):
        assert [*padded_vocab(50257, np.array([1, 2, 8]))] == [50304, 50432, 51200]
        assert [*padded_vocab(None, np.array([1, 2]))] == [0, 0]

    @pytest.mark.parametrize(
        ("numbers", "words"),
        [
            ((4, 3, Choices(tensor_parallel=(1,), pipeline_parallel=(2,))), "nearest: 4"),
            ((14, 14, Choices(pipeline_parallel=(3,))), r"14 devices % \(pp 3\) = 2"),
            ((14, 14, Choices(pipeline_parallel=(7,))), "4 layers on pp 7 stages: each needs a layer"),
            ((6, 6, Choices(tensor_parallel=(3,))), "heads 4 % tp 3 = 1"),
            ((16, 16, Choices(tensor_parallel=(8,))), "heads 4 % tp 8 = 4"),
            ((4, 4, Choices(microbatch=(3,))), "dp x microbatch must divide the batch"),
            ((4, 4, Choices(interleave=(7,))), r"interleave 7: .* as many of the 4 layers as pp x interleave"),
            (
                (4, 4, Choices(interleave=(2,), pipeline_parallel=(1,))),
                r"interleave 2: .* interleaving needs 2 stages or more",
            ),
        ],
    )
    def test_nothing_is_legal(self, numbers: tuple[int, int, Choices], words: str):
        with pytest.raises(UserError, match=words):
            valid_layouts(model(), machine(), *numbers)
