"""The four models on a device: every precision, compiled, channels innermost, sharded, and their figures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchsuite.grid.expand import plan_trial
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.loss_check import check_loss
from benchsuite.runner.single_trial import run_in_processes, run_trial
from tests.gpu import cases
from tests.gpu.accept import SEVERAL_GPUS

MODELS = {"resnet50": 8, "unet3d": 2, "bert": 8, "gpt_neox": 8}


def spec_of(workload: str, **changes: Any) -> dict[str, Any]:
    return cases.spec_of(workload, **{"batch_size": MODELS[workload], **changes})


def check(record: TrialRecord) -> None:
    assert record.status == "ok", record.reason
    figures = record.figures
    assert figures.final_loss is not None and figures.final_loss > 0
    assert figures.weights_bytes and figures.peak_memory_bytes
    assert (figures.activations_bytes is None) == bool(record.spec["compile"]), "counting runs uncompiled"
    assert figures.peak_memory_bytes >= figures.weights_bytes + figures.optimizer_bytes  # type: ignore[operator]
    if figures.peak_tflops_per_device is not None:
        assert figures.mfu is not None and 0 < figures.mfu < 1


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "pure_bf16"])
@pytest.mark.parametrize("workload", MODELS)
def test_every_precision(workload: str, precision: str) -> None:
    check(run_trial(spec_of(workload, precision=precision)))


@pytest.mark.parametrize("workload", MODELS)
def test_compiled_in_bf16(workload: str) -> None:
    check(run_trial(spec_of(workload, precision="bf16", compile=True)))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_compiled_in_other_precisions(precision: str) -> None:
    check(run_trial(spec_of("gpt_neox", precision=precision, compile=True)))


def test_a_fused_optimizer_scales_fp16_itself() -> None:
    record = run_trial(spec_of("gpt_neox", precision="fp16", fused=True, optimizer="adamw"))
    check(record)
    assert record.figures.skipped_steps is not None


@pytest.mark.parametrize("workload", ["resnet50", "unet3d"])
def test_channels_last(workload: str) -> None:
    check(run_trial(spec_of(workload, precision="bf16", channels_last=True)))


@pytest.mark.parametrize("mode", ["ddp", "zero2", "fsdp"])
def test_modes_over_nccl(mode: str) -> None:
    ranks = min(torch.cuda.device_count(), 2)
    record = run_in_processes(plan_trial(spec_of("gpt_neox", parallelism=mode, world_size=ranks)))[0]
    check(record)
    if ranks > 1:
        assert record.figures.communication_s is not None and record.figures.communication_s > 0


@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp", "tp", "pp"])
def test_modes_train_as_one_process_does(mode: str) -> None:
    ranks = min(torch.cuda.device_count(), 2)
    if mode in ("tp", "pp") and ranks < 2:
        pytest.skip(f"{mode} splits a model over at least 2 devices, here is {ranks}")
    found = check_loss(plan_trial(spec_of("gpt_neox", parallelism=mode, world_size=ranks, optimizer="momentum")))
    assert found["equal"], found


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_checkpointing_takes_less_memory(checkpointing: str) -> None:
    whole = run_trial(spec_of("gpt_neox", batch_size=64))
    less = run_trial(spec_of("gpt_neox", batch_size=64, activation_checkpointing=checkpointing))
    check(less)
    assert less.figures.peak_memory_bytes < whole.figures.peak_memory_bytes  # type: ignore[operator]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_trains_as_one_process_does(zero: int, record_property: Callable[[str, object], None]) -> None:
    pytest.importorskip("deepspeed")
    ranks = min(torch.cuda.device_count(), 2)
    record_property(SEVERAL_GPUS, ["deepspeed"] if ranks > 1 else [])
    parallelism = {"engine": "deepspeed", "dp": ranks, "zero": zero}
    found = check_loss(plan_trial(spec_of("gpt_neox", parallelism=parallelism, optimizer="momentum")))
    assert found["equal"], found
