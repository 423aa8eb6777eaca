"""What a rank holds and sends, against closed forms: ZeRO's, ring algorithms', Megatron's."""

from typing import Any

import pytest
import torch

from benchsuite import workloads
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.parallel.account import Account, wire_bytes
from benchsuite.workloads.parallel.dry import dry_account
from benchsuite.workloads.spec import ComputeSpec, Parallelism
from benchsuite.workloads.workload import Workload

GPT: Workload = workloads.load(workloads.WORKLOADS, "gpt_neox")
NANO = GPT.variants["nano"]
PARAMETERS = 216_448
IN_NO_BLOCK = 2 * 128 * 64 + 2 * 64
"""Of these the embedding, the final norm and the head."""
BATCH, LAYERS, HEADS, HIDDEN, LENGTH = 4, 4, 8, 64, 16


COUNTED: dict[str, Account] = {}
"""What was counted already: each of these is a model built and a step taken."""


def counted(mode: Any, ranks: int, variant: str = "nano", **compute: Any) -> Account:
    asked = repr((mode, ranks, variant, compute))
    if asked not in COUNTED:
        layout = layout_of(mode if isinstance(mode, str) else Parallelism(**mode), ranks)
        spec = ComputeSpec.model_validate({"optimizer": "adamw", **compute})
        COUNTED[asked] = dry_account(GPT, GPT.variants[variant], layout, spec, BATCH)
    return COUNTED[asked]


@pytest.mark.parametrize(
    ("operation", "ranks", "expected"),
    [
        ("all_reduce", 4, 1500),
        ("all_gather", 4, 750),
        ("reduce_scatter", 2, 500),
        ("all_to_all", 8, 875),
        ("send", 2, 1000),
    ],
)
def test_wire_bytes_of_a_thousand(operation: str, ranks: int, expected: float) -> None:
    assert wire_bytes(operation, 1000, ranks) == expected


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.full), 64])
def test_ddp_holds_everything_and_sends_its_gradients_twice_around(ranks: int) -> None:
    found = counted("ddp", ranks)
    assert found.weights_bytes == found.gradients_bytes == 4 * PARAMETERS
    assert found.optimizer_bytes == pytest.approx(8 * PARAMETERS, rel=1e-3)
    assert found.wire_bytes == pytest.approx(2 * (ranks - 1) / ranks * 4 * PARAMETERS)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 8])
def test_fully_sharded_holds_a_share_and_sends_half_as_much_again(ranks: int) -> None:
    """Rajbhandari et al. 2020, section 7: 2 P for gradients and optimizer states sharded, 3 P for weights as well.

    What is in no block is gathered once, as torch's root group is, unless it is asked to be dropped after forward.
    """
    share = 4 * PARAMETERS / ranks
    once = 3 - IN_NO_BLOCK / PARAMETERS
    asked: list[tuple[str, float, dict[str, Any]]] = [("zero2", 2, {}), ("fsdp", once, {})]
    for mode, volume, compute in [*asked, ("fsdp", 3, {"reshard_after_forward": True})]:
        found = counted(mode, ranks, **compute)
        assert found.weights_bytes == found.gradients_bytes == pytest.approx(share, rel=0.01)
        assert found.optimizer_bytes == pytest.approx(2 * share, rel=0.01)
        assert found.wire_bytes == pytest.approx(volume * (ranks - 1) / ranks * 4 * PARAMETERS, rel=0.01)


def test_tensor_parallel_all_reduces_four_activations_a_layer() -> None:
    """Two in forward and two in backward (Narayanan et al. 2021); embedding and loss besides."""
    found = counted("tp", 2)
    assert found.collectives["all_reduce"] == pytest.approx(4 * 4, abs=3)
    assert found.weights_bytes < 0.6 * 4 * PARAMETERS


NORMS = 2 * (2 * LAYERS + 1) * 2 * HIDDEN
"""Half of the bytes of norms' gradients, which sequence parallelism adds up in 32 bits."""


@pytest.mark.parametrize(
    ("mode", "variant", "in_32_bits"),
    [
        ({"tp": 2}, "nano", 0),
        ({"tp": 2}, "nano_gpt2", 0),
        ({"tp": 2, "sequence_parallel": True}, "nano", NORMS),
        ({"pp": 2}, "nano", 0),
        ({"pp": 2}, "nano_llama", 0),
    ],
)
def test_activations_are_sent_in_16_bits_under_bf16(mode: dict[str, Any], variant: str, in_32_bits: int) -> None:
    """What FSDP's layers hand on: with one replica activations and their gradients are all that is sent."""
    half, single = counted(mode, 2, variant, precision="bf16"), counted(mode, 2, variant)
    assert half.wire_bytes == pytest.approx(single.wire_bytes / 2 + in_32_bits)


def test_full_checkpointing_keeps_only_the_blocks_inputs() -> None:
    kept, dropped = counted("ddp", 2), counted("ddp", 2, activation_checkpointing="full")
    assert dropped.activations_bytes < 0.5 * kept.activations_bytes


def test_selective_checkpointing_keeps_what_products_and_attention_return_besides() -> None:
    """Of each layer queries, keys, values (3), attention (1), its projection (1), the MLP (4 + 1); and log-sum-exps."""
    activation, sums = 4 * BATCH * LENGTH * HIDDEN, 4 * BATCH * LENGTH * HEADS
    full, selective = (counted("ddp", 2, activation_checkpointing=how) for how in ("full", "selective"))
    assert selective.activations_bytes == full.activations_bytes + LAYERS * (10 * activation + sums)


def test_accumulation_exchanges_once() -> None:
    assert counted("ddp", 2, grad_accum=4).wire_bytes == counted("ddp", 2).wire_bytes


def test_512_ranks_need_no_devices() -> None:
    found = counted({"tp": 8, "zero": 3}, 512, "pythia-410m")
    assert found.weights_bytes == pytest.approx(4 * 405_334_016 / 512, rel=0.2)
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= set(found.collectives)


def test_nothing_of_the_dry_group_stays() -> None:
    COUNTED.clear()
    counted("ddp", 2)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 4])
def test_a_ring_passes_on_keys_and_values_twice_and_their_gradients_once(ranks: int) -> None:
    """Liu et al. 2023: forward and backward each send both to ranks - 1 others; gradients also travel home."""
    found = counted("cp", ranks)
    block = 2 * 4 * BATCH * LENGTH // ranks * HIDDEN
    messages = LAYERS * (2 * (ranks - 1) + ranks)
    gradients = 2 * (ranks - 1) / ranks * 4 * PARAMETERS
    assert found.collectives == {"all_reduce": 1, "send": messages}
    assert found.wire_bytes == pytest.approx(gradients + messages * block)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.full), 4])
def test_all_to_all_attention_exchanges_eight_activations_a_layer(ranks: int) -> None:
    """Jacobs et al. 2023, section 3.1: queries, keys, values and outputs, in forward and backward."""
    found = counted({"cp": ranks, "cp_attention": "all_to_all"}, ranks)
    activation = 4 * BATCH * LENGTH // ranks * HIDDEN
    gradients = 2 * (ranks - 1) / ranks * 4 * PARAMETERS
    assert found.collectives == {"all_reduce": 1, "all_to_all": 4 * LAYERS}
    assert found.wire_bytes == pytest.approx(gradients + LAYERS * 8 * (ranks - 1) / ranks * activation)


def test_ranks_that_share_sequences_keep_a_share_of_the_activations() -> None:
    whole, half = counted("ddp", 2), counted("cp", 2)
    assert half.activations_bytes == pytest.approx(whole.activations_bytes / 2, rel=0.05)
    assert (half.weights_bytes, half.optimizer_bytes) == (whole.weights_bytes, whole.optimizer_bytes)


@pytest.mark.parametrize(
    ("degrees", "ranks"), [({"tp": 2}, 4), ({"pp": 2}, 4), ({"tp": 2, "pp": 2}, 8), ({"cp": 2}, 2)]
)
def test_zero1_shards_the_states_of_models_that_are_split(degrees: dict[str, int], ranks: int) -> None:
    replicas, dealt = counted(degrees, ranks), counted(degrees | {"zero": 1}, ranks)
    assert dealt.optimizer_bytes == pytest.approx(replicas.optimizer_bytes / 2, rel=0.05)
    assert (dealt.weights_bytes, dealt.gradients_bytes) == (replicas.weights_bytes, replicas.gradients_bytes)
    assert dealt.wire_bytes == pytest.approx(replicas.wire_bytes + dealt.weights_bytes / 2)


def test_a_lone_rank_cannot_count_what_a_pipeline_gathers() -> None:
    with pytest.raises(NotImplementedError, match="zero 3 with pp: when weights are gathered depends on"):
        counted({"pp": 2, "zero": 3}, 4)
