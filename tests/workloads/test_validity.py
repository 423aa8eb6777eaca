"""What cannot be trained so is refused with its arithmetic, and what can is not."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchsuite import workloads
from benchsuite.workloads import engine
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.spec import ComputeSpec, Parallelism
from benchsuite.workloads.validity import problem
from benchsuite.workloads.workload import Workload
from tests.helpers.snapshots import compare_messages


def refused(
    name: str, variant: str, mode: Any, ranks: int, batch: int = 4, device: str = "cpu", **compute: Any
) -> str | None:
    workload: Workload = workloads.load(workloads.WORKLOADS, name)
    layout = layout_of(mode if isinstance(mode, str) else Parallelism(**mode), ranks)
    return problem(workload.facts, workload.variants[variant], layout, ComputeSpec(**compute), batch, device)


def test_layouts() -> None:
    cases = [
        ("resnet50", "tiny", "tp", 2),
        ("unet3d", "tiny", "tp", 2),
        ("unet3d", "tiny", "pp", 2),
        ("bert", "tiny", "pp", 2),
        ("gpt_neox", "tiny", {"tp": 8}, 8),
        ("gpt_neox", "nano_llama", {"tp": 8}, 8),
        ("gpt_neox", "gpt2-xl", {"tp": 2}, 2),
        ("gpt_neox", "gpt2", {"tp": 2, "loss_parallel": True}, 2),
        ("gpt_neox", "nano_gpt2", "pp", 2),
        ("gpt_neox", "nano", {"pp": 8}, 8),
        ("gpt_neox", "nano", {"pp": 4, "schedule": "interleaved"}, 4),
        ("gpt_neox", "nano", {"pp": 2, "microbatches": 3}, 2),
        ("gpt_neox", "nano", {"pp": 4, "microbatches": 2}, 4),
        ("gpt_neox", "nano", {"pp": 2, "schedule": "naive", "microbatches": 2}, 2),
        ("gpt_neox", "nano", "ep", 2),
        ("resnet50", "tiny", "ep", 2),
        ("gpt_neox", "nano_moe", "ep", 3),
        ("gpt_neox", "nano_moe", {"ep": 2, "tp": 2}, 4),
        ("gpt_neox", "nano_moe", {"ep": 2, "cp": 2}, 4),
        ("gpt_neox", "nano_moe", {"zero": 1, "ep": 2}, 4),
        ("bert", "nano", "cp", 2),
        ("resnet50", "tiny", "cp", 2),
        ("gpt_neox", "nano", {"cp": 16}, 16),
        ("gpt_neox", "nano", {"cp": 16, "cp_attention": "all_to_all"}, 16),
        ("gpt_neox", "nano", {"cp": 3, "cp_attention": "all_to_all"}, 3),
        ("gpt_neox", "nano", {"cp": 4, "tp": 8, "sequence_parallel": True}, 32),
        ("gpt_neox", "nano", {"zero": 3, "dp_replicate": 2, "pp": 2}, 4),
        ("gpt_neox", "nano", "hsdp", 2),
        ("gpt_neox", "nano", {"dp_replicate": 2}, 4),
        ("gpt_neox", "nano", {"sequence_parallel": True}, 2),
    ]
    compare_messages("workloads_layouts", cases, refused)


def test_techniques() -> None:
    cases = [
        ("ddp", {"grad_accum": 3}),
        ("fsdp", {"comm_hook": "fp16"}),
        ("ddp", {"cpu_offload": True}),
        ("ddp", {"channels_last": True}),
        ("ddp", {"optimizer": "adafactor", "fused": True}),
        ("ddp", {"static_graph": True, "grad_accum": 2}),
        ("ddp", {"precision": "tf32"}),
        ("ddp", {"precision": "fp8"}),
        ("fsdp", {"precision": "fp16"}),
        ("fsdp", {"optimizer": "adafactor"}),
        ("tp", {"optimizer": "adafactor"}),
        ("fsdp", {"fused": True}),
        ("tp", {"fused": True, "optimizer": "adamw"}),
        ("ddp", {"comm_hook": "powersgd", "precision": "fp16"}),
        ("pp", {"channels_last": True}),
        ("pp", {"grad_accum": 2}),
    ]
    compare_messages(
        "workloads_techniques", cases, lambda mode, compute: refused("gpt_neox", "nano", mode, 2, **compute)
    )


def test_weights_that_are_resharded_in_a_pipeline_that_loses_gradients_then() -> None:
    """Torch gathers them once for all microbatches unless it is asked to drop them."""
    sharded = {"zero": 3, "pp": 2, "schedule": "zero_bubble"}
    assert refused("gpt_neox", "nano", sharded, 4) is None
    reason = str(refused("gpt_neox", "nano", sharded, 4, reshard_after_forward=True))
    assert "zero_bubble" in reason and "loses gradients" in reason


def test_what_goes_backward_in_two_parts_is_not_compiled() -> None:
    zero_bubble = {"pp": 2, "schedule": "zero_bubble"}
    assert "torch 2.13: This backward function" in str(refused("gpt_neox", "nano", zero_bubble, 2, compile=True))
    assert refused("gpt_neox", "nano", {"tp": 2, "pp": 2, "schedule": "1f1b"}, 4, compile=True) is None


def test_fp8_is_of_linear_layers_that_are_whole() -> None:
    images = refused("resnet50", "tiny", "ddp", 2, device="cuda", precision="fp8")
    assert images == "precision fp8 is of linear layers, resnet50 has convolutions"
    assert "precision fp8 with tp 2" in str(refused("gpt_neox", "nano", "tp", 2, device="cuda", precision="fp8"))
    assert refused("gpt_neox", "nano", "fsdp", 2, device="cuda", precision="fp8") is None
    assert refused("bert", "nano", "ddp", 2, device="cuda", precision="fp8") is None


def test_data_parallel_is_not_ddp() -> None:
    refused_hook = refused("resnet50", "nano", "data_parallel", 1, device="cuda", comm_hook="fp16")
    assert refused_hook == "comm_hook is an option of ddp, zero1 and engine horovod, parallelism is data_parallel"
    assert "copies modules" in str(refused("resnet50", "nano", "data_parallel", 1, device="cuda", compile=True))


def test_what_can_run_is_not_refused() -> None:
    assert refused("gpt_neox", "nano", {"tp": 2, "pp": 2, "dp": 2}, 8) is None
    assert refused("bert", "nano", {"tp": 4, "zero": 3}, 8) is None
    assert refused("resnet50", "nano", "pp", 2) is None
    assert refused("resnet50", "nano", "fsdp", 2, channels_last=True) is None
    assert refused("gpt_neox", "reference", {"tp": 8, "pp": 4, "microbatches": 4}, 512) is None
    assert refused("gpt_neox", "nano", "ddp", 2, device="cuda", precision="tf32") is None
    assert refused("gpt_neox", "nano", "ddp", 2, comm_hook="none") is None
    assert refused("gpt_neox", "nano", "fsdp", 2, fused=True, optimizer="adamw") is None
    assert refused("gpt_neox", "nano", {"cp": 2, "zero": 3, "dp_replicate": 2}, 4) is None
    assert refused("gpt_neox", "reference", {"tp": 8, "pp": 4, "cp": 2, "zero": 1, "microbatches": 4}, 512) is None


@pytest.mark.parametrize(("held", "refuses"), [(b"..HorovodAllreduce..", True), (b"..ncclAllReduce..", False)])
def test_horovod_on_cuda_needs_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes, refuses: bool
) -> None:
    """A stub of its library, which is asked for its names and not loaded."""
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").write_bytes(held)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    engine.horovod_has_nccl.cache_clear()
    try:
        on_cuda = refused("resnet50", "nano", {"engine": "horovod"}, 2, device="cuda")
        assert (on_cuda is not None and "built without NCCL" in on_cuda) == refuses, on_cuda
        assert refused("resnet50", "nano", {"engine": "horovod"}, 2, device="cpu") is None
    finally:
        engine.horovod_has_nccl.cache_clear()
