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
BATCH = 4


def counted(mode: Any, ranks: int, variant: str = "nano", **compute: Any) -> Account:
    layout = layout_of(mode if isinstance(mode, str) else Parallelism(**mode), ranks)
    spec = ComputeSpec.model_validate({"optimizer": "adamw", **compute})
    return dry_account(GPT, GPT.variants[variant], layout, spec, BATCH)


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


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_ddp_holds_everything_and_sends_its_gradients_twice_around(ranks: int) -> None:
    found = counted("ddp", ranks)
    assert found.weights_bytes == found.gradients_bytes == 4 * PARAMETERS
    assert found.optimizer_bytes == pytest.approx(8 * PARAMETERS, rel=1e-3)
    assert found.wire_bytes == pytest.approx(2 * (ranks - 1) / ranks * 4 * PARAMETERS)


@pytest.mark.parametrize("ranks", [2, 8])
def test_fully_sharded_holds_a_share_and_sends_half_as_much_again(ranks: int) -> None:
    """Rajbhandari et al. 2020, section 7: 2 P for gradients and optimizer states sharded, 3 P for weights as well."""
    share = 4 * PARAMETERS / ranks
    for mode, volume in (("zero2", 2), ("fsdp", 3)):
        found = counted(mode, ranks)
        assert found.weights_bytes == found.gradients_bytes == pytest.approx(share, rel=0.01)
        assert found.optimizer_bytes == pytest.approx(2 * share, rel=0.01)
        assert found.wire_bytes == pytest.approx(volume * (ranks - 1) / ranks * 4 * PARAMETERS, rel=0.01)


def test_tensor_parallel_all_reduces_four_activations_a_layer() -> None:
    """Two in forward and two in backward (Narayanan et al. 2021); embedding and loss besides."""
    found = counted("tp", 2)
    assert found.collectives["all_reduce"] == pytest.approx(4 * 4, abs=3)
    assert found.weights_bytes < 0.6 * 4 * PARAMETERS


def test_full_checkpointing_keeps_only_the_blocks_inputs() -> None:
    kept, dropped = counted("ddp", 2), counted("ddp", 2, activation_checkpointing="full")
    assert dropped.activations_bytes < 0.5 * kept.activations_bytes
    selective = counted("ddp", 2, activation_checkpointing="selective")
    assert dropped.activations_bytes <= selective.activations_bytes <= kept.activations_bytes


def test_accumulation_exchanges_once() -> None:
    assert counted("ddp", 2, grad_accum=4).wire_bytes == counted("ddp", 2).wire_bytes


def test_512_ranks_need_no_devices() -> None:
    found = counted({"tp": 8, "zero": 3}, 512, "pythia-410m")
    assert found.weights_bytes == pytest.approx(4 * 405_334_016 / 512, rel=0.2)
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= set(found.collectives)


def test_nothing_of_the_dry_group_stays() -> None:
    counted("ddp", 2)
    assert not torch.distributed.is_initialized()
