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


def refused(
    name: str, variant: str, mode: Any, ranks: int, batch: int = 4, device: str = "cpu", **compute: Any
) -> str | None:
    workload: Workload = workloads.load(workloads.WORKLOADS, name)
    layout = layout_of(mode if isinstance(mode, str) else Parallelism(**mode), ranks)
    return problem(workload.facts, workload.variants[variant], layout, ComputeSpec(**compute), batch, device)


@pytest.mark.parametrize(
    ("name", "variant", "mode", "ranks", "words"),
    [
        ("resnet50", "tiny", "tp", 2, ["resnet50 has no plan for tp 2"]),
        ("unet3d", "tiny", "tp", 2, ["unet3d has no plan for tp 2"]),
        ("unet3d", "tiny", "pp", 2, ["unet3d cannot be cut into pp 2 stages"]),
        ("bert", "tiny", "pp", 2, ["bert cannot be cut into pp 2 stages"]),
        ("gpt_neox", "tiny", {"tp": 8}, 8, ["num_heads 4 is not a multiple of tp 8"]),
        ("gpt_neox", "nano_llama", {"tp": 8}, 8, ["num_kv_heads 4 is not a multiple of tp 8"]),
        ("gpt_neox", "gpt2-xl", {"tp": 2}, 2, ["num_heads 25 is not a multiple of tp 2"]),
        ("gpt_neox", "gpt2", {"tp": 2, "loss_parallel": True}, 2, ["vocab_size 50257 is not a multiple of tp 2"]),
        ("gpt_neox", "nano_gpt2", "pp", 2, ["tied embeddings", "first and the last stage of pp 2"]),
        ("gpt_neox", "nano", {"pp": 8}, 8, ["6 pieces of gpt_neox < pp 8 x 1 stages a rank = 8"]),
        ("gpt_neox", "nano", {"pp": 4, "schedule": "interleaved"}, 4, ["6 pieces", "pp 4 x 2 stages a rank = 8"]),
        ("gpt_neox", "nano", {"pp": 2, "microbatches": 3}, 2, ["batch_size 4 is not a multiple of microbatches 3"]),
        ("gpt_neox", "nano", {"pp": 4, "microbatches": 2}, 4, ["needs microbatches >= pp 4, got 2"]),
        ("gpt_neox", "nano", {"pp": 2, "schedule": "naive", "microbatches": 2}, 2, ["naive has 1 microbatch"]),
        ("gpt_neox", "nano", "ep", 2, ["gpt_neox has no experts in this variant to deal to ep 2 ranks"]),
        ("resnet50", "tiny", "ep", 2, ["resnet50 has no experts"]),
        ("gpt_neox", "nano_moe", "ep", 3, ["experts 8 is not a multiple of ep 3"]),
        ("gpt_neox", "nano_moe", {"ep": 2, "tp": 2}, 4, ["experts are dealt over dp alone"]),
        ("gpt_neox", "nano_moe", {"ep": 2, "cp": 2}, 4, ["ep 2 with tp 1 and pp 1 and cp 2", "over dp alone"]),
        ("gpt_neox", "nano_moe", {"zero": 1, "ep": 2}, 4, ["zero 1 with ep 2"]),
        ("bert", "nano", "cp", 2, ["bert has no plan for cp 2"]),
        ("resnet50", "tiny", "cp", 2, ["resnet50 has no plan for cp 2"]),
        ("gpt_neox", "nano", {"cp": 16}, 16, ["seq_len 16 is not a multiple of 2 x cp 32"]),
        (
            "gpt_neox",
            "nano",
            {"cp": 16, "cp_attention": "all_to_all"},
            16,
            ["num_heads 8 is not a multiple of cp x tp 16"],
        ),
        ("gpt_neox", "nano", {"cp": 3, "cp_attention": "all_to_all"}, 3, ["seq_len 16 is not a multiple of cp 3"]),
        ("gpt_neox", "nano", {"cp": 4, "tp": 8, "sequence_parallel": True}, 32, ["seq_len 16", "cp x tp 32"]),
        ("gpt_neox", "nano", {"zero": 3, "dp_replicate": 2, "pp": 2}, 4, ["dp 2 / dp_replicate 2 = 1 rank"]),
        ("gpt_neox", "nano", "hsdp", 2, ["dp 2 / dp_replicate 2 = 1 rank to shard over"]),
        ("gpt_neox", "nano", {"dp_replicate": 2}, 4, ["dp_replicate 2 replicates what zero 3 shards"]),
        ("gpt_neox", "nano", {"sequence_parallel": True}, 2, ["split over tp, which is 1"]),
    ],
)
def test_layouts(name: str, variant: str, mode: Any, ranks: int, words: list[str]) -> None:
    reason = refused(name, variant, mode, ranks)
    assert reason is not None
    assert all(word in reason for word in words), reason


@pytest.mark.parametrize(
    ("mode", "compute", "words"),
    [
        ("ddp", {"grad_accum": 3}, "batch_size 4 is not a multiple of grad_accum 3"),
        ("fsdp", {"comm_hook": "fp16"}, "comm_hook is an option of ddp, zero1 and engine horovod, parallelism is fsdp"),
        (
            "ddp",
            {"cpu_offload": True},
            "cpu_offload is an option of zero2, fsdp, hsdp and engine deepspeed, parallelism is ddp",
        ),
        ("ddp", {"channels_last": True}, "channels_last is for images and volumes, gpt_neox takes tokens"),
        ("ddp", {"optimizer": "adafactor", "fused": True}, "adafactor has no fused implementation"),
        ("ddp", {"static_graph": True, "grad_accum": 2}, "static_graph with grad_accum 2"),
        ("ddp", {"precision": "tf32"}, "precision tf32 is a mode of CUDA devices, device is cpu"),
        ("ddp", {"precision": "fp8"}, "precision fp8 is a mode of CUDA devices, device is cpu"),
        ("fsdp", {"precision": "fp16"}, "precision fp16 scales whole gradients"),
        ("fsdp", {"optimizer": "adafactor"}, "adafactor takes norms of whole matrices, which no rank has under fsdp"),
        ("tp", {"optimizer": "adafactor"}, "adafactor takes norms of whole matrices"),
        ("fsdp", {"fused": True}, "fused under fsdp"),
        ("tp", {"fused": True, "optimizer": "adamw"}, "fused under tp"),
        ("ddp", {"comm_hook": "powersgd", "precision": "fp16"}, "comm_hook powersgd with fp16"),
        ("pp", {"channels_last": True}, "channels_last with pp 2"),
        ("pp", {"grad_accum": 2}, "a pipeline accumulates over parallelism.microbatches"),
    ],
)
def test_techniques(mode: str, compute: dict[str, Any], words: str) -> None:
    reason = refused("gpt_neox", "nano", mode, 2, **compute)
    assert reason is not None and words in reason, reason


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
