"""The parts of a step by hand, and the assumptions behind them."""

from dataclasses import fields, replace

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout import models
from benchsuite_plan.layout.assumptions import Assumptions, drawn, ranges, typical
from benchsuite_plan.layout.candidates import Choices, valid_layouts
from benchsuite_plan.layout.cost import cost
from planner.tests.small import IDEAL, LAYER_PARAMS, SAMPLE_S, job, layout, machine, model


class TestCost:
    def test_one_device_by_hand(self):
        found = cost(job(), layout(microbatch=2, num_microbatches=4), IDEAL)
        assert found.compute_s == pytest.approx(8 * 4 * 3 * SAMPLE_S)
        assert found.step_s == pytest.approx(found.compute_s), "nothing else"

    @pytest.mark.parametrize(("recompute", "passes"), [(0, 0), (2, 1)])
    def test_recomputation_is_another_forward_pass(self, recompute: int, passes: int):
        found = cost(job(), layout(num_microbatches=8, recompute=recompute), IDEAL)
        assert found.recompute_s == pytest.approx(passes * 8 * 4 * SAMPLE_S)

    def test_selective_recomputation_repeats_the_scores(self):
        found = cost(job(flash_attention=False), layout(num_microbatches=8, recompute=1), IDEAL)
        assert found.recompute_s == pytest.approx(8 * 4 * 4 * 64**2 * 128 / 0.5e12)

    def test_the_head_computes_with_its_padding(self):
        found = cost(job(model=model(vocab=1000)), layout(num_microbatches=8), IDEAL)
        head = 3 * 8 * 2 * 64 * 128 * 1024 / 0.5e12
        assert found.compute_s == pytest.approx(8 * 4 * 3 * SAMPLE_S + head)

    def test_tensor_parallel_by_hand(self):
        """4 rings of 2 s h bytes a layer and sample within a node: (t - 1)/t twice over 10 GB/s; 6 if recomputed."""
        ring = 2 * 64 * 128 * 2 / 2 / 10e9
        found = cost(job(2), layout(tp=2, num_microbatches=8), IDEAL)
        assert found.compute_s == pytest.approx(8 * 4 * 3 * SAMPLE_S / 2)
        assert found.tensor_s == pytest.approx(8 * 4 * 4 * ring)
        again = cost(job(2), layout(tp=2, num_microbatches=8, recompute=2), IDEAL)
        assert again.tensor_s == pytest.approx(8 * 4 * 6 * ring)

    def test_tensor_parallel_out_of_the_node_is_bound_by_its_adapters(self):
        found = cost(job(4), layout(tp=4, num_microbatches=8), IDEAL)
        assert found.tensor_s == pytest.approx(8 * 4 * 4 * 2 * 64 * 128 * 2 * 3 / 4 / 2e9)

    def test_replicas_exchange_hierarchically(self):
        """2 in each of 2 nodes: half a ring twice over 10 GB/s, then half of the gradients over a share of 1 GB/s."""
        size = 2 * (4 * LAYER_PARAMS + 128)
        expected = size / 10e9 + size / 2 / 1e9
        found = cost(job(4), layout(dp=4, microbatch=2), IDEAL)
        assert found.data_s == pytest.approx(expected)
        assert cost(job(4), layout(dp=4, microbatch=2, zero=1), IDEAL).data_s == pytest.approx(expected)
        assert cost(job(4), layout(dp=4, microbatch=2, zero=3), IDEAL).data_s == pytest.approx(1.5 * expected)
        twice = cost(job(4), layout(dp=4, num_microbatches=2, zero=2), IDEAL)
        assert twice.data_s == pytest.approx(1.5 * expected), "scattered twice, gathered once"

    def test_tensor_parallel_ranks_leave_fewer_replicas_in_a_node(self):
        """Nodes of 2 devices and tp 2: each replica is a node, and every gradient crosses the network."""
        size = 2 * (4 * LAYER_PARAMS + 128) / 2
        assert cost(job(4), layout(tp=2, dp=2, microbatch=4), IDEAL).data_s == pytest.approx(size / 1e9)

    def test_what_the_backward_pass_hides(self):
        exposed = float(cost(job(4, batch=4), layout(dp=4), IDEAL).data_s[0])
        backward = 2 * 4 * SAMPLE_S
        half = cost(job(4, batch=4), layout(dp=4), replace(IDEAL, data_overlap=0.5)).data_s
        assert half == pytest.approx(exposed - 0.5 * backward)
        # 3,200 samples take long enough to hide all but the last bucket.
        long = cost(job(4, batch=12800), layout(dp=4, microbatch=3200), replace(IDEAL, data_overlap=0.5)).data_s
        assert long == pytest.approx(0.05 * exposed)

    def test_pipelines_by_hand(self):
        """4 microbatches through 2 stages in one node: a bubble of one, sends of s h elements, forward and backward."""
        stage = 2 * 3 * SAMPLE_S
        send = 64 * 128 * 2 / 10e9
        found = cost(job(2, batch=4), layout(pp=2, num_microbatches=4), IDEAL)
        assert found.compute_s == pytest.approx(4 * stage)
        assert found.pipeline_s == pytest.approx(4 * 2 * send)
        assert found.bubble_s == pytest.approx(stage + 2 * send)
        halves = cost(job(2, batch=4), layout(pp=2, num_microbatches=4, interleave=2), IDEAL)
        assert halves.bubble_s == pytest.approx(stage / 2 + 2 * send)
        assert halves.pipeline_s == pytest.approx(4 * 2 * 2 * send)

    def test_the_longest_stage_sets_the_pace(self):
        """3 layers and two ends on 2 stages: embedding and 2 layers, 1 layer and head; both passes through the rest."""
        uneven = job(2, batch=4, model=model(layers=3))
        found = cost(uneven, layout(pp=2, num_microbatches=4, ends_count=1), IDEAL)
        assert found.compute_s == pytest.approx(4 * 2 * 3 * SAMPLE_S)
        assert found.bubble_s == pytest.approx(3 * SAMPLE_S + 2 * 64 * 128 * 2 / 10e9)
        with_head = job(2, batch=4, model=model(layers=3, vocab=128 * 64))
        head = 3 * 2 * 64 * 128 * 128 * 64 / 0.5e12
        assert head > 3 * SAMPLE_S, "the last stage is the longer one then"
        last = cost(with_head, layout(pp=2, num_microbatches=4, ends_count=1), IDEAL)
        assert last.compute_s == pytest.approx(4 * (3 * SAMPLE_S + head))
        assert last.bubble_s == pytest.approx(2 * 3 * SAMPLE_S + 2 * 64 * 128 * 2 / 10e9)

    def test_parts_of_a_sequence_hand_on_keys_and_values(self):
        """Half of the tokens each; keys and values of that half once forward, with their gradients twice back."""
        found = cost(job(2), layout(cp=2, num_microbatches=8), IDEAL)
        assert found.compute_s == pytest.approx(8 * 4 * 3 * SAMPLE_S / 2)
        assert found.context_s == pytest.approx(8 * 4 * 3 * (2 * 32 * 128 * 2 / 10e9))
        assert found.data_s == pytest.approx(2 * (4 * LAYER_PARAMS + 128) / 10e9), "both exchange all gradients"

    def test_tokens_travel_to_their_experts(self):
        """2 of 4 experts a token: twice the MLP's work; 4 all_to_alls of 2 s h elements, half of them out."""
        mixed = job(2, model=model(num_experts=4, top_k=2))
        found = cost(mixed, layout(dp=2, ep=2, num_microbatches=4), IDEAL)
        router = 2 * 64 * 4 * 128
        layer = (2 * 64 * (4 + 2 * 8) * 128**2 + 4 * 64**2 * 128 + router) / 0.5e12
        assert found.compute_s == pytest.approx(4 * 4 * 3 * layer)
        assert found.expert_s == pytest.approx(4 * 4 * 4 * 2 * 64 * 128 * 2 / 2 / 10e9)
        dense = 4 * (4 * 128**2 + 2 * 128 + 4 * 128) + 128
        assert found.data_s == pytest.approx(2 * dense / 10e9), "experts are exchanged by nobody: each rank has its own"

    def test_pipelines_of_sharded_replicas_scatter_once(self):
        size = 2 * (2 * LAYER_PARAMS + 128)
        found = cost(job(4, batch=8), layout(pp=2, dp=2, zero=2, num_microbatches=4), IDEAL)
        assert found.data_s == pytest.approx(size / 10e9), "one scatter and one gather, half an all_reduce each"
        whole = cost(job(4, batch=8), layout(pp=2, dp=2, zero=3, num_microbatches=4), IDEAL)
        assert whole.data_s == pytest.approx((1 + 2 * 4) / 2 * size / 10e9)

    def test_sends_between_nodes_have_a_share_of_the_adapter(self):
        found = cost(job(4, batch=4), layout(pp=4, num_microbatches=4), IDEAL)
        assert found.pipeline_s == pytest.approx(4 * 2 * 64 * 128 * 2 / 1e9)

    def test_the_optimizer_reads_and_writes_its_shard(self):
        given = replace(IDEAL, optimizer_bytes=30.0, memory_efficiency=0.5)
        expected = 30 * (4 * LAYER_PARAMS + 128) / 0.5e12
        assert cost(job(4), layout(dp=4), given).optimizer_s == pytest.approx(expected)
        assert cost(job(4), layout(dp=4, zero=1), given).optimizer_s == pytest.approx(expected / 4)

    def test_small_matrices_are_slower(self):
        """As many tokens x width as the half-point: half of the speed."""
        given = replace(IDEAL, half_area=64.0 * 128)
        assert cost(job(), layout(num_microbatches=8), given).compute_s == pytest.approx(2 * 8 * 4 * 3 * SAMPLE_S)
        quarter = replace(IDEAL, half_area=2 * 64.0 * 128 / 3)
        split = cost(job(4), layout(dp=2, tp=2, microbatch=2, num_microbatches=2), quarter).compute_s
        assert split == pytest.approx((1 + 2 / 3) * 2 * 2 * 4 * 3 * SAMPLE_S / 2), "two samples of half the width"

    def test_a_pass_takes_no_less_than_its_launches(self):
        given = replace(IDEAL, layer_launch_s=1.0)
        assert cost(job(), layout(num_microbatches=8), given).compute_s == pytest.approx(8 * 4 * 3)

    def test_memory_traffic(self):
        given = replace(IDEAL, memory_passes=2.0, memory_efficiency=0.5)
        extra = 3 * 8 * 4 * 2 * 34 * 64 * 128 / 0.5e12
        assert cost(job(), layout(num_microbatches=8), given).compute_s == pytest.approx(8 * 4 * 3 * SAMPLE_S + extra)

    def test_a_slow_storage_holds_the_step(self):
        slow = machine(storage={"shared_read_bytes_per_s": 1e6})
        found = cost(job(model=model(bytes_per_token=2e4), machine=slow), layout(num_microbatches=8), IDEAL)
        assert found.step_s == pytest.approx(8 * 64 * 2e4 / 1e6)
        assert found.input_s == pytest.approx(8 * 64 * 2e4 / 1e6 - float(found.compute_s[0]))

    def test_nodes_read_no_faster_than_their_adapters(self):
        fast = machine(storage={"shared_read_bytes_per_s": 1e14})
        huge = model(sample_bytes=1e12)
        found = cost(job(model=huge, machine=fast), layout(num_microbatches=8), IDEAL)
        assert found.step_s == pytest.approx(8 * 1e12 / 2e9)

    def test_stragglers_take_their_share_where_there_are_others(self):
        """The slower of two standard normals lies 0.564 behind the mean."""
        given = replace(IDEAL, jitter=0.1)
        assert cost(job(), layout(num_microbatches=8), given).straggling_s == pytest.approx(0, abs=1e-12)
        two = cost(job(2), layout(dp=2, num_microbatches=4), given)
        assert two.straggling_s == pytest.approx(0.0564 * (two.step_s - two.straggling_s), rel=1e-3)

    def test_measured_samples_stand_in_for_flops(self):
        openfold = models.load("openfold")
        with pytest.raises(UserError, match="device_sample_s"):
            cost(job(model=openfold), layout(), IDEAL)
        measured = openfold.model_copy(update={"device_sample_s": 3.0})
        found = cost(job(model=measured, batch=2), layout(num_microbatches=2), IDEAL)
        assert found.step_s == pytest.approx(6.0)

    def test_parts_add_up_for_many_layouts_at_once(self):
        of = valid_layouts(model(), machine(), 4, 8, Choices())
        found = cost(job(4), of, typical())
        parts = sum(np.broadcast_to(getattr(found, each.name), len(of)) for each in fields(found))
        assert found.step_s == pytest.approx(parts)
        alone = [float(cost(job(4), of.take(np.array([at])), typical()).step_s[0]) for at in range(len(of))]
        assert [*found.step_s] == pytest.approx(alone)

    def test_draws_broadcast_over_layouts(self):
        of = valid_layouts(model(), machine(), 4, 8, Choices())
        assert cost(job(4), of, drawn(7)).step_s.shape == (7, len(of))


class TestAssumptions:
    def test_every_field_has_a_range_that_holds_its_value(self):
        assert {each.name for each in fields(Assumptions)} == set(ranges())
        assert all(of.low <= of.typical <= of.high and of.about for of in ranges().values())

    @pytest.mark.parametrize("recipe", ["megatron", "trial"])
    def test_draws_are_the_ranges(self, recipe):
        given = drawn(100_000, seed=3, recipe=recipe)
        for name, of in ranges(recipe=recipe).items():
            values = np.ravel(getattr(given, name))
            low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
            assert middle == pytest.approx(of.typical, rel=0.03)
            assert low == pytest.approx(of.low, abs=0.06 * (of.high - of.low))
            assert high == pytest.approx(of.high, abs=0.06 * (of.high - of.low))
            assert values.min() >= of.low / 2 and (of.high > 1 or values.max() <= 1)

    def test_the_same_seed_draws_the_same(self):
        assert np.array_equal(drawn(5, 1).half_area, drawn(5, 1).half_area)
        assert not np.array_equal(drawn(5, 1).half_area, drawn(5, 2).half_area)
