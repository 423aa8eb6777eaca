"""Memory of a layout by hand, and against the published."""

import numpy as np
import pytest

from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Job
from benchsuite_plan.layout.memory import footprint
from planner.tests.small import LAYER_PARAMS, job, layout, machine, model


class TestFootprint:
    WHOLE = LAYER_PARAMS * 4 + 128

    @pytest.mark.parametrize(("zero", "each"), [(0, 18), (1, 6 + 12 / 4), (2, 2 + 16 / 4), (3, 18 / 4)])
    def test_states_by_hand(self, zero: int, each: float):
        gathered = 2 * 2 * LAYER_PARAMS if zero == 3 else 0
        found = footprint(job(4), layout(dp=4, zero=zero))
        assert found.states == pytest.approx(each * self.WHOLE + gathered)

    def test_states_in_single_precision(self):
        device = {"name": "d", "peak_flops": {"fp32": 1e12}, "memory_bytes": 1e9, "memory_bytes_per_s": 1e9}
        single = machine(device=device)
        found = footprint(job(precision="fp32", machine=single), layout())
        assert found.states == pytest.approx(16 * self.WHOLE)

    def test_stages_hold_their_layers_and_an_end(self):
        with_vocab = model(vocab=1280, tied_embeddings=False)
        found = footprint(job(2, model=with_vocab), layout(pp=2, num_microbatches=8))
        assert found.states == pytest.approx(18 * (2 * LAYER_PARAMS + 1280 * 128 + 128))
        tied = footprint(job(2, model=model(vocab=1280)), layout(pp=2, num_microbatches=8))
        assert tied.states == pytest.approx(found.states), "the last stage keeps its own copy of a tied embedding"

    def test_activations_by_hand(self):
        """34 s b h a layer without scores, the embedding's mask 1, inputs of norm and logits 4; no vocabulary."""
        token = 2 * 64 * 128
        found = footprint(job(), layout(microbatch=2))
        assert found.activations == pytest.approx(token * (4 * 34 + 1 + 4))
        full = footprint(job(), layout(microbatch=2, recompute=2))
        assert full.activations == pytest.approx(token * (4 * 2 + 34 + 1 + 4)), "inputs of layers, and one layer"
        scores = footprint(job(flash_attention=False), layout(microbatch=2))
        assert scores.activations - found.activations == pytest.approx(token * 4 * 5 * 4 * 64 / 128)

    def test_tensor_parallel_activations_with_and_without_sequence_parallel(self):
        token = 64 * 128
        split = footprint(job(2), layout(tp=2))
        assert split.activations == pytest.approx(token * (4 * 17 + 0.5 + 2))
        whole = footprint(job(2, sequence_parallel=False), layout(tp=2))
        assert whole.activations == pytest.approx(token * (4 * (10 + 12) + 0.5 + 2))

    def test_the_first_stage_keeps_as_many_microbatches_as_there_are_stages(self):
        token = 64 * 128
        found = footprint(job(2), layout(pp=2, num_microbatches=8))
        assert found.activations == pytest.approx(token * (2 * 34 * 2 + 2))
        few = footprint(job(2, batch=1), layout(pp=2, num_microbatches=1))
        assert few.activations == pytest.approx(token * (2 * 34 + 4)), "one microbatch: the last stage has the logits"

    def test_published_530b(self):
        """Korthikanti et al. 2022, arXiv:2205.05198, figure 1: 31.64 GiB of states (12 L h^2), 23.08 of activations."""
        paper = Job(models.load("mt-nlg-530b"), machines.load("dgx-a100"), 280, 280, flash_attention=False)
        found = footprint(paper, layout(tp=8, pp=35, num_microbatches=280, interleave=3, recompute=1))
        embedding = 18 * (51200 + 2048) * 20480 / 8 / 2**30
        assert found.states[0] / 2**30 - embedding == pytest.approx(31.640625, rel=1e-3)
        assert found.activations[0] / 2**30 == pytest.approx(23.076171875, rel=0.01)

    def test_gated_mlps_keep_more(self):
        token = 64 * 128
        gated = footprint(job(model=model(gated_mlp=True, ffn_hidden=512)), layout())
        assert gated.activations == pytest.approx(token * (4 * (34 + 16) + 1 + 4))

    def test_unknown_activations_stay_unknown(self):
        found = footprint(job(model=models.load("unet3d")), layout())
        assert np.isnan(found.activations) and found.total == found.states


class TestPeaks:
    """Of trials: beside what is kept."""

    def test_the_loss_takes_its_gradient_and_gradients_are_not_made_by_then(self):
        words = model(vocab=1280)
        one, two = (footprint(job(model=words, recipe="trial"), layout(num_microbatches=m)) for m in (1, 2))
        assert two.loss == pytest.approx(6 * 64 * 1280)
        dense = LAYER_PARAMS * 4 + 128 + 1280 * 128
        assert one.loss == pytest.approx(6 * 64 * 1280 - 4 * dense)
        assert one.total == pytest.approx(one.states + np.maximum(one.activations + one.loss, 4 * dense))

    def test_the_last_stage_alone_has_logits(self):
        few, many = (model(vocab=vocab) for vocab in (128, 128_000))
        deep, wide = (
            footprint(job(2, model=of, recipe="trial"), layout(pp=2, num_microbatches=8)) for of in (few, many)
        )
        assert deep.loss == 0, "the first stage holds more"
        assert wide.loss == pytest.approx(6 * 64 * 128_000)
