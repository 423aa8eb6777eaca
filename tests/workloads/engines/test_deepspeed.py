"""What DeepSpeed is configured with, and locks that a killed compiler leaves behind."""

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchsuite import workloads
from benchsuite.workloads.engines import deepspeed
from benchsuite.workloads.engines.deepspeed import STALE_LOCK_S, configuration, remove_stale_lock
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.parallel.recipe import Ranks, Recipe
from benchsuite.workloads.spec import ComputeSpec, Parallelism


def test_the_configuration_is_made_of_ours() -> None:
    compute = ComputeSpec(
        precision="bf16",
        grad_accum=2,
        cpu_offload=True,
        reduce_bucket_size=1000,
        prefetch_bucket_size=2000,
        param_persistence_threshold=30,
        contiguous_gradients=True,
        overlap_comm=False,
    )
    layout = layout_of(Parallelism(engine="deepspeed", zero=3), 4)
    recipe = Recipe(workloads.load(workloads.WORKLOADS, "bert"), Ranks(layout, torch.device("cpu")), compute)
    assert configuration(recipe, 32) == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 1000,
            "stage3_prefetch_bucket_size": 2000,
            "stage3_param_persistence_threshold": 30,
            "contiguous_gradients": True,
            "overlap_comm": False,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "offload_param": {"device": "cpu", "pin_memory": False},
        },
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def test_an_old_lock_that_nobody_holds_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "lock"
    assert not remove_stale_lock(lock)
    lock.touch()
    old_s = time.time() - STALE_LOCK_S - 1
    os.utime(lock, (old_s, old_s))
    assert remove_stale_lock(lock) and not lock.exists()
    assert capsys.readouterr().err == f"removing {lock}: the compiler that made it is gone\n"


def test_a_lock_that_is_held_or_young_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    held = os.open(lock, os.O_CREAT | os.O_EXCL)
    os.utime(lock, (0, 0))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:  # its holder is gone, and another compiler has taken it
            os.close(held)
            os.utime(lock)
        else:
            lock.unlink()

    monkeypatch.setattr(deepspeed.time, "sleep", wait)
    assert not remove_stale_lock(lock)
    assert len(waits) == 2


@pytest.mark.parametrize(("device", "number"), [("cuda:0", "0"), ("cuda:3", "3"), ("cpu", "0")])
def test_it_is_told_the_number_of_the_device_and_nothing_of_open_mpi(
    monkeypatch: pytest.MonkeyPatch, device: str, number: str
) -> None:
    """With one GPU a task the third rank of a node computes on its device 0. A stub stands in for the library."""
    monkeypatch.setattr(
        os, "environ", {"LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "5", "OMPI_UNIVERSE_SIZE": "8"}
    )
    stub = ModuleType("deepspeed")
    monkeypatch.setitem(sys.modules, "deepspeed", stub)
    layout = layout_of(Parallelism(engine="deepspeed", zero=1), 8)
    assert deepspeed._library(Ranks(layout, torch.device(device))) is stub
    assert os.environ["LOCAL_RANK"] == number
    assert not [name for name in os.environ if name.startswith("OMPI_")]
