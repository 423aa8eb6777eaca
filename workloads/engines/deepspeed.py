"""Engine `deepspeed`: ZeRO as DeepSpeed does it (Rajbhandari et al., "ZeRO", 2020), from a configuration made of ours.

bf16 is DeepSpeed's own: weights of 16 bits, and masters of 32 bits that the optimizer steps. Run as a program, this
module compiles what DeepSpeed would else compile when ranks start.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchsuite.workloads import optim
from benchsuite.workloads.parallel.account import state_bytes
from benchsuite.workloads.parallel.recipe import Recipe
from benchsuite.workloads.parallel.step import (
    Training,
    add_mean_targets,
    microbatches,
    on_device,
    waits_of_this_process,
)
from benchsuite.workloads.parallel.waits import StepClock, Waits
from benchsuite.workloads.precision import Scaler, autocast, convert_batch
from benchsuite.workloads.workload import Batch

OPTIONS: Mapping[str, str] = {
    "reduce_bucket_size": "reduce_bucket_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "contiguous_gradients": "contiguous_gradients",
    "overlap_comm": "overlap_comm",
}
"""What our settings are called in DeepSpeed's configuration of ZeRO."""
MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Where DeepSpeed's optimizers keep weights of 32 bits, by stage."""
STALE_LOCK_S = 120.0
"""A lock as old as this, which no process here holds open, was left behind by a compiler that was killed."""


def configuration(recipe: Recipe, global_batch: int) -> dict[str, Any]:
    """DeepSpeed's configuration of a training."""
    layout, compute = recipe.ranks.layout, recipe.compute
    sharding: dict[str, Any] = {"stage": layout.zero}
    for ours, theirs in OPTIONS.items():
        if getattr(compute, ours) is not None:
            sharding[theirs] = getattr(compute, ours)
    if compute.cpu_offload:
        pinned = recipe.ranks.device.type == "cuda"
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": pinned}
        if layout.zero == 3:
            sharding["offload_param"] = {"device": "cpu", "pin_memory": pinned}
    return {
        "train_micro_batch_size_per_gpu": global_batch // layout.dp // compute.grad_accum,
        "gradient_accumulation_steps": compute.grad_accum,
        "zero_optimization": sharding,
        "bf16": {"enabled": compute.precision == "bf16"},
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # the optimizer is the one of all other modes
    }


@dataclass(frozen=True)
class _Running:
    """Steps of a DeepSpeed engine."""

    engine: Any
    recipe: Recipe
    waits: Waits

    def step(self, batch: Batch, clock: StepClock) -> Tensor:
        """Load to device, forward and backward of each microbatch; the engine exchanges, and updates after the last."""
        recipe, waits = self.recipe, self.waits
        micros = microbatches(self._on_device(batch, clock), recipe.compute.grad_accum)
        waits.begin(clock, "forward")
        if recipe.workload.targets is not None:
            add_mean_targets(micros, recipe)
        losses = []
        for micro in micros:
            waits.begin(clock, "forward")
            with autocast(recipe.compute.precision, recipe.ranks.device):  # losses and norms in 32 bits, as elsewhere
                loss = recipe.workload.loss(self.engine, micro)
            clock.mark("forward")
            waits.begin(clock, "backward")
            self.engine.backward(loss)
            clock.mark("backward")
            losses.append(loss.detach())
            waits.begin(clock, "optimizer")
            self.engine.step()
            clock.mark("optimizer")
        waits.end()
        return torch.stack(losses).mean()

    def _on_device(self, batch: Batch, clock: StepClock) -> Batch:
        moved = on_device(batch, self.recipe, clock)
        return convert_batch(moved, "pure_bf16") if self.recipe.compute.precision == "bf16" else moved


def train(model: nn.Module, recipe: Recipe, global_batch: int) -> Training:
    """A model under DeepSpeed's engine, with the optimizer and the learning rates of other modes."""
    waits = waits_of_this_process()  # before DeepSpeed keeps torch's collectives
    deepspeed = _library(recipe.ranks)
    optimizer = optim.make(recipe.workload, recipe.compute, list(model.parameters()))
    config = configuration(recipe, global_batch)
    if config["bf16"]["enabled"] and any(isinstance(part, _BatchNorm) for part in model.modules()):
        # It leaves buffers at 32 bits, and batch norm takes no statistics of another type than its weights.
        config["data_types"] = {"buffer_dtype": "bf16"}
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=optim.schedule(optimizer, recipe.compute, global_batch),
        config=config,
        dist_init_required=False,
    )
    running = _Running(engine, recipe, waits)
    return Training(
        running.step,
        lambda: full_state(engine, deepspeed),
        model,
        optimizer,
        Scaler("fp32", recipe.ranks.device),
        [engine],
        told=lambda: held_bytes(engine, optimizer),
    )


def full_state(engine: Any, deepspeed: Any) -> dict[str, Tensor]:
    """Every weight and buffer by its name, on the CPU, of weights the masters; all ranks must call it."""
    model = engine.module
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        found = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    if not engine.bfloat16_enabled():
        return found
    masters = {name: deepspeed.utils.safe_get_full_fp32_param(weight) for name, weight in model.named_parameters()}
    return found | {name: value.detach().cpu().clone() for name, value in masters.items() if value is not None}


def held_bytes(engine: Any, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes on this rank of what torch does not see: masters of the weights, and weights that stage 3 has taken away.

    Masters count as states of the optimizer, as in "ZeRO" (12 bytes a parameter with Adam).
    """
    masters = [master for name in MASTERS for master in getattr(engine.optimizer, name, ())]
    found = {"optimizer_bytes": state_bytes(optimizer) + sum(master.nbytes for master in masters)}
    model = engine.module
    shards = [shard for weight in model.parameters() if (shard := getattr(weight, "ds_tensor", None)) is not None]
    if not shards:
        return found
    held = sum(buffer.nbytes for buffer in model.buffers()) + sum(shard.nbytes for shard in shards)
    return found | {"weights_bytes": held}


def _library(ranks: Any) -> Any:
    """DeepSpeed for a device, with its messages turned down."""
    os.environ["DS_ACCELERATOR"] = ranks.device.type
    os.environ.setdefault("DS_LOG_LEVEL", "warning")
    # It takes LOCAL_RANK for the number of a device, and compares it with what Open MPI's tasks are told.
    os.environ["LOCAL_RANK"] = str(ranks.device.index or 0)
    for name in [name for name in os.environ if name.startswith("OMPI_")]:
        del os.environ[name]
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def compile_once(operator: str = "deepspeed_shm_comm") -> None:
    """Compile what DeepSpeed needs on CPUs, unless that is done; a compiler that was killed does not stop it."""
    from torch.utils.cpp_extension import _get_build_directory

    folder = Path(_get_build_directory(operator, verbose=False))
    remove_stale_lock(folder / "lock")
    if not any(folder.glob("*.so")):
        sys.stderr.write("compiling what engine deepspeed needs (a minute or two, once)\n")
    os.environ["DS_ACCELERATOR"], os.environ["DS_LOG_LEVEL"] = "cpu", "warning"
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    ShareMemCommBuilder().load(verbose=False)


def remove_stale_lock(lock: Path) -> bool:
    """Remove the lock of a compiler that is gone, for which others would wait for ever; whether there was one.

    Other nodes may compile in the same folder: where anything in it is young, the lock is waited for.
    """
    while lock.exists():
        age_s = time.time() - _newest_s(lock.parent)
        if not _is_open(lock) and age_s > STALE_LOCK_S:
            sys.stderr.write(f"removing {lock}: the compiler that made it is gone\n")
            lock.unlink(missing_ok=True)
            return True
        time.sleep(1.0)
    return False


def _newest_s(folder: Path) -> float:
    """When anything in a folder was last written."""
    newest_s = 0.0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # compilers remove what they made for a while
            newest_s = max(newest_s, path.stat().st_mtime)
    return newest_s


def _is_open(file: Path) -> bool:
    """Whether a process of this node has it open."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(Path(opened.path) == file for opened in process.open_files()):
                return True
    return False


if __name__ == "__main__":
    if sys.argv[1:] == ["cpu"]:
        compile_once()
