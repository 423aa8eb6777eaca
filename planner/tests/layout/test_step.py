"""The step of any model's layouts in one call, against closed forms that others check."""

from dataclasses import replace

import numpy as np
import pytest

from benchsuite_plan.layout.cost import constants_of
from benchsuite_plan.layout.step import step
from benchsuite_plan.layout.work import counted
from benchsuite_plan.theory.flops import transformer_flops
from benchsuite_plan.theory.memory import activation_bytes_per_layer
from planner.tests.configured import IDEAL, configured, constants
from planner.tests.small import IDEAL as GIVEN
from planner.tests.small import job, layout, model

EVEN = 50304
"""Rows of an embedding that need no padding up to tp 3."""


@pytest.mark.parametrize(("recompute", "word"), [(0, "none"), (1, "full")])
def test_products_alone_are_the_flops_of_the_step(recompute: int, word: str):
    runs = configured(num_microbatches=3, recompute=recompute, vocab_size=EVEN)
    flops = transformer_flops(2 * 3, 1024, 24, 2048, EVEN, recompute=word)
    assert step(runs.work, IDEAL).step_s[0] == pytest.approx(flops / 220e12, rel=1e-6)


def test_a_part_of_the_layers_is_recomputed():
    none, half, every = (step(configured(recompute=share).work, IDEAL).step_s[0] for share in (0, 0.5, 1))
    assert half == pytest.approx((none + every) / 2) and none < every


@pytest.mark.parametrize("tensor", [1, 4])
def test_traffic_is_the_activations_that_tensor_parallelism_leaves(tensor: int):
    """Three passes, at 1 GB/s; scores too where attention stores them; and 4 bytes a logit."""
    slow = replace(IDEAL, flops_per_s=1e30, memory_bytes_per_s=1e9, head_weight=1e-12, link_bytes_per_s=1e30)
    for flash in (0, 1):
        kept = 24 * 3 * activation_bytes_per_layer(2, 1024, 2048, 16, tensor, "tp", flash_attention=bool(flash))
        assert step(configured(tensor=tensor, flash=flash).work, slow).step_s[0] == pytest.approx(kept / 1e9)
    logits = step(configured(vocab_size=EVEN, flash=1).work, replace(slow, head_weight=1.0)).step_s[0]
    without = 24 * 3 * activation_bytes_per_layer(2, 1024, 2048, 16, 1, "tp", flash_attention=True)
    assert logits == pytest.approx((without + 4 * 2 * 1024 * EVEN) / 1e9)


def test_no_pass_is_faster_than_its_launches_and_long_ones_hide_them():
    waiting = step(configured(vocab_size=1).work, replace(IDEAL, launch_s=10.0)).step_s[0]
    assert waiting == pytest.approx(3 * 24 * 10.0, rel=1e-6)
    free, busy = (step(configured().work, replace(IDEAL, launch_s=s)).step_s[0] for s in (0.0, 1e-4))
    assert busy == pytest.approx(free, rel=1e-3)


def test_larger_exchanges_in_a_node_are_faster_where_links_grow():
    """2 (t - 1)/t of 2 x 1024 x 2048 values in 16 bits over 100 GB/s, times t / 2 to the power."""
    one = 24 * 4 * 2 * 1024 * 2048 * 2 / 100e9
    for power in (0.0, 0.5):
        wire = replace(IDEAL, link_bytes_per_s=100e9, link_growth=power)
        found = step(configured(tensor=[1, 2, 4, 8]).work, wire).tensor_s
        assert found == pytest.approx([0, one, 1.5 * one / 2**power, 1.75 * one / 4**power])


def test_exchanges_of_replicas_are_the_volumes_of_zero():
    """Passes of P (d - 1)/d values in 16 bits: 2 up to ZeRO-1, m + 1 of ZeRO-2, 3 m of ZeRO-3 (arXiv:1910.02054)."""
    wire = replace(IDEAL, link_bytes_per_s=100e9)
    for microbatches in (1, 5):
        runs = configured(data=4, zero=[0, 1, 2, 3], num_microbatches=microbatches)
        one = runs.work.update_params[0] * 2 * 3 / 4 / 100e9
        passes = np.array([2, 2, microbatches + 1, 3 * microbatches])
        assert step(runs.work, wire).data_s == pytest.approx(passes * one)


def test_pipelines_wait_for_a_bubble_of_stages_minus_one():
    """Without a head: (m + p - 1)/m, Narayanan et al. 2021, section 2.2."""
    even = replace(IDEAL, head_weight=1e-12, link_bytes_per_s=1e30)
    one = step(configured(num_microbatches=8).work, even).step_s[0]
    found = step(configured(num_microbatches=8, pipeline=4).work, even)
    assert found.step_s[0] == pytest.approx(one / 4 * (8 + 3) / 8)
    assert found.bubble_s[0] / found.step_s[0] == pytest.approx(3 / 11)


def test_stages_that_layers_do_not_divide_evenly_have_their_mean():
    even, odd = (step(configured(num_layers=layers, pipeline=4).work, IDEAL).step_s[0] for layers in (24, 26))
    assert odd > even


def test_models_of_a_table_are_counted_each_and_keep_their_order():
    runs = configured(
        hidden_size=[4096, 2048, 4096, 1024],
        tensor=[1, 2, 8, 1],
        data=[8, 2, 16, 64],
        pipeline=[1, 2, 4, 1],
        num_microbatches=4,
        zero=[0, 0, 1, 3],
        ranks_per_node=[8, 8, 4, 8],
    )
    found = step(runs.work, constants()).step_s
    alone = [step(runs.take(np.array([place])).work, constants()).step_s[0] for place in range(4)]
    assert found == pytest.approx(alone)
    some = np.array([3, 0])
    assert step(runs.work.take(some), constants()).step_s == pytest.approx(found[some])


def test_a_table_and_the_planner_count_alike():
    """The same GPT by `Configurations` and by a job of the small machine, whose constants both get."""
    gpt = {"hidden": 128, "heads": 4, "seq_len": 64, "layers": 4, "vocab": 1280, "bias": True, "rms_norm": False}
    planned = job(4, model=model(**gpt), sequence_parallel=False, flash_attention=False)
    of = layout(tp=2, dp=2, microbatch=2, num_microbatches=2, recompute=2, zero=1)
    same = configured(
        hidden_size=128, num_heads=4, seq_len=64, num_layers=4, vocab_size=1280, tensor=2, data=2, num_microbatches=2,
        recompute=1, zero=1, ranks_per_node=2,
    )  # fmt: skip
    given = constants_of(planned, GIVEN)
    assert step(same.work, given).step_s == pytest.approx(step(counted(planned, of), given).step_s)
