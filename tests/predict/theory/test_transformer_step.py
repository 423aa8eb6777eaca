"""The step of a layout against sums by hand and closed forms that others check."""

import numpy as np
import pytest

from benchsuite.predict.theory import volumes
from benchsuite.predict.theory.flops import transformer_flops
from benchsuite.predict.theory.memory import activation_bytes_per_layer
from benchsuite.predict.theory.transformer_step import data_s, head_s, layer_s, of_slowest, parts, send_s, tensor_s
from tests.predict.configured import IDEAL, configured, constants


@pytest.mark.parametrize(("recompute", "word"), [(0, "none"), (1, "full")])
def test_products_alone_are_the_flops_of_the_step(recompute: int, word: str):
    runs = configured(num_microbatches=3, recompute=recompute)
    flops = transformer_flops(2 * 3, 1024, 24, 2048, 50257, recompute=word)
    assert parts(runs, IDEAL).step_s[0] == pytest.approx(flops / 220e12, rel=1e-6)


def test_small_products_reach_half_the_rate_at_half_tokens():
    slow = IDEAL | {"half_tokens": 2048.0}
    assert layer_s(configured(), slow)[0] == pytest.approx(2 * layer_s(configured(), IDEAL)[0])


def test_elementwise_traffic_is_the_activations_that_tensor_parallelism_leaves():
    free = IDEAL | {"flops_per_s": 1e30, "elementwise_bytes_per_s": 1e9}
    for tensor in (1, 4):
        kept = activation_bytes_per_layer(2, 1024, 2048, 16, tensor, "tp")
        assert layer_s(configured(tensor=tensor), free)[0] == pytest.approx(kept / 1e9)
    without = activation_bytes_per_layer(2, 1024, 2048, 16, 1, "tp", flash_attention=True)
    assert layer_s(configured(flash=1), free)[0] == pytest.approx(without / 1e9)


def test_no_layer_is_faster_than_its_launches():
    assert layer_s(configured(), IDEAL | {"launch_s": 10.0})[0] == pytest.approx(10.0)


def test_tensor_parallelism_reduces_activations_four_or_six_times():
    """2 (t - 1)/t of 2 x 1024 x 2048 values in 16 bits over 100 GB/s, t = 2: 83.9 us each."""
    wire = constants(link_bytes_per_s=100e9, link_growth=1.0, tensor_latency_s=0.0, node_bytes_per_s=10e9)
    one = 2 * 1024 * 2048 * 2 / 100e9
    assert tensor_s(configured(tensor=[1, 2, 4]), wire) == pytest.approx([0, 4 * one, 4 * 1.5 * one])
    assert tensor_s(configured(tensor=2, recompute=1), wire)[0] == pytest.approx(6 * one)
    assert tensor_s(configured(tensor=16), wire)[0] == pytest.approx(4 * 2 * 15 / 16 * one * 10), "leaves the node"


def test_sharded_parameters_are_exchanged_each_microbatch_and_gradients_once():
    """P = 12 x 24 x 2048^2 + 50257 x 2048 = 1.311e9 in 16 bits, all ranks in a node."""
    wire = constants(link_bytes_per_s=100e9, latency_s=0.0, overlap=1e-12, step_s=1e-12)
    num_bytes = 2 * (12 * 24 * 2048**2 + 50257 * 2048)
    nothing = np.zeros(1)
    once = data_s(configured(data=4), wire, nothing, sharded=False)[0]
    assert once == pytest.approx(2 * 3 / 4 * num_bytes / 100e9)
    assert data_s(configured(data=4), wire, nothing, sharded=True)[0] == 0
    each = data_s(configured(data=4, zero=3), wire, nothing, sharded=True)[0]
    assert each == pytest.approx(3 * 3 / 4 * num_bytes / 100e9)
    assert parts(configured(data=4, zero=3, num_microbatches=5), wire).data[0] == pytest.approx(5 * each)
    assert parts(configured(data=4, num_microbatches=5), wire).data[0] == pytest.approx(once)


def test_zero_2_scatters_gradients_for_every_microbatch_and_gathers_parameters_once():
    """One microbatch: 2 P (d - 1)/d as DDP; five: 5 + 1 passes. As `volumes` has it."""
    wire = constants(link_bytes_per_s=100e9, latency_s=0.0, overlap=1e-12, step_s=1e-12)
    for microbatches in (1, 5):
        seconds = [
            parts(configured(data=4, zero=zero, num_microbatches=microbatches), wire).data[0] for zero in range(4)
        ]
        runs = configured(data=4)
        sent = [volumes.data_parallel_bytes(runs.params_per_device[0], 4, zero, microbatches) for zero in range(4)]
        assert seconds == pytest.approx([float(one) / 100e9 for one in sent])
    assert sent[2] == pytest.approx(3 * sent[0]), "(5 + 1) over 2"


def test_zero_2_hides_each_part_beside_its_own_microbatch():
    """All that can be is hidden behind 0.01 s: of five scatters 0.01 s each, of the gathering once as much."""
    wire = constants(link_bytes_per_s=1e9, overlap=1e12)
    runs = configured(data=2, zero=2)
    one = 0.5 * 2 * runs.params_per_device[0] / 1e9
    beside = np.full(1, 0.01)
    assert data_s(runs, wire, beside, sharded=True)[0] == pytest.approx(one - 0.01)
    assert data_s(runs, wire, beside, sharded=False)[0] == pytest.approx(one - 0.01)


def test_groups_that_leave_a_node_share_its_links():
    wire = constants(node_bytes_per_s=80e9, overlap=1e-12)
    nothing = np.zeros(3)
    runs = configured(tensor=[1, 2, 4], data=[16, 16, 16])
    seconds = data_s(runs, wire, nothing, sharded=False)
    expected = [2 * 15 / 16 * 2 * p * t / 80e9 for p, t in zip(runs.params_per_device, runs.tensor, strict=True)]
    assert seconds == pytest.approx(expected)


def test_overlap_hides_its_share_and_no_more_than_there_is_beside():
    wire = constants(link_bytes_per_s=1e9, overlap=1.0)
    runs = configured(data=2)
    whole = data_s(runs, wire | {"overlap": 1e-12}, np.ones(1), sharded=False)[0]
    assert data_s(runs, wire, np.full(1, 1e9), sharded=False)[0] == pytest.approx(whole / 2)
    assert data_s(runs, wire, np.full(1, 0.1), sharded=False)[0] == pytest.approx(whole - 0.05)


def test_pipelines_wait_for_a_bubble_of_stages_minus_one():
    """Without a head: (m + p - 1)/m, Narayanan et al. 2021, section 2.2."""
    even = IDEAL | {"head_weight": 1e-12, "send_weight": 1e-12}
    one = parts(configured(num_microbatches=8), even).step_s[0]
    found = parts(configured(num_microbatches=8, pipeline=4), even)
    assert found.step_s[0] == pytest.approx(one / 4 * (8 + 3) / 8)
    assert found.bubble[0] / found.step_s[0] == pytest.approx(3 / 11)


def test_stages_send_a_part_each():
    wire = constants(link_bytes_per_s=100e9, node_bytes_per_s=80e9, send_weight=1.0)
    num_bytes = 2 * 2 * 1024 * 2048 * 2
    assert send_s(configured(pipeline=[1, 2]), wire) == pytest.approx([0, num_bytes / 100e9])
    assert send_s(configured(pipeline=2, tensor=8), wire)[0] == pytest.approx(num_bytes / 8 / 10e9), "between nodes"


def test_head():
    assert head_s(configured(), IDEAL)[0] == pytest.approx(6 * 2 * 1024 * 2048 * 50257 / 220e12)


def test_the_slowest_of_some():
    """Means of the largest of 1, 2, 8 and 100 standard normals (Harter 1961)."""
    assert of_slowest(np.array([1.0, 2.0, 8.0, 100.0])) == pytest.approx([0, 0.56419, 1.42360, 2.50759], abs=2e-3)
    runs = configured(data=[1, 8])
    none, some = parts(runs, constants(jitter=1e-12)), parts(runs, constants(jitter=0.1))
    assert some.step_s / none.step_s == pytest.approx([1, 1.14236], abs=1e-3)


def test_parts_add_up_for_arrays_of_layouts():
    runs = configured(
        tensor=[1, 2, 8, 1], data=[8, 2, 16, 64], pipeline=[1, 2, 4, 1], num_microbatches=4, zero=[0, 0, 1, 3]
    )
    found = parts(runs, constants())
    assert found.step_s.shape == (4,)
    assert found.step_s == pytest.approx(found.compute + found.tensor + found.bubble + found.data + found.rest)
    alone = [parts(runs.take(np.array([place])), constants()).step_s[0] for place in range(4)]
    assert found.step_s == pytest.approx(alone)
    assert runs.ranks.tolist() == [8, 8, 512, 64]
    assert runs.step_tokens.tolist() == [2 * 1024 * 4 * d for d in (8, 2, 16, 64)]
