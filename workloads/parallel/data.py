"""Recipes that spread samples: each rank, or group of ranks, sees its own."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from benchsuite.workloads.parallel.spread import Make, Recipe, Spread, averaged

ONE_BUCKET_MB = 1 << 20
"""PowerSGD sends several messages a bucket; gloo sends those of different buckets in another order on each rank."""


def alone(model: nn.Module, recipe: Recipe) -> Spread:
    """One rank, nothing exchanged."""
    return Spread(model)


def data_parallel(model: nn.Module, recipe: Recipe) -> Spread:
    """One process that cuts each batch over all its CUDA devices, by threads (torch.nn.DataParallel).

    Models are copied to the devices in every step; DDP does the same work better. What the devices exchange cannot be
    told from their computation.
    """
    return Spread(nn.DataParallel(model))


def ddp(model: nn.Module, recipe: Recipe) -> Spread:
    """Replicas with averaged gradients (Li et al., "PyTorch distributed", 2020).

    Buffers are not broadcast: that would sit in the forward pass and be taken for computation.
    """
    compute, device = recipe.compute, recipe.ranks.device
    bucket_cap_mb = compute.bucket_cap_mb
    if compute.comm_hook == "powersgd" and device.type == "cpu":
        bucket_cap_mb = ONE_BUCKET_MB
    with warnings.catch_warnings():
        # torch 2.13 prefers another name for it, which torch 2.11 does not know.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=recipe.ranks.data_group(),
            broadcast_buffers=False,
            bucket_cap_mb=bucket_cap_mb,
            static_graph=compute.static_graph,
            gradient_as_bucket_view=compute.gradient_as_bucket_view,
        )
    if compute.comm_hook is not None:
        _compress(wrapped, compute.comm_hook, recipe.ranks.data_group())
    return Spread(wrapped, exchanges=True, holding=wrapped.no_sync)


def _compress(model: DistributedDataParallel, hook: str, group: dist.ProcessGroup) -> None:
    """Exchange gradients at 16 bits, or by PowerSGD of rank 1 (Vogels et al. 2019) from the second step on."""
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, warm_start=True)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    else:
        model.register_comm_hook(group, _bf16_hook)


def _bf16_hook(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket at bfloat16: torch's own hook asks for NCCL."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(compressed, group=group, async_op=True)
    full: torch.Tensor = bucket.buffer()

    def widen(future: torch.futures.Future[Any]) -> torch.Tensor:
        return full.copy_(future.value()[0])

    assert work is not None
    averaged_bucket: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
    return averaged_bucket


def zero1(model: nn.Module, recipe: Recipe) -> Spread:
    """Replicas whose optimizer states are dealt to ranks (Rajbhandari et al., "ZeRO", 2020, stage 1).

    After the step each rank broadcasts the weights it has updated.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    spread = ddp(model, recipe)
    group = recipe.ranks.data_group()

    def sharded(parameters: Sequence[nn.Parameter], make: Make) -> torch.optim.Optimizer:
        like = make(parameters)
        known = inspect.signature(type(like)).parameters
        defaults = {name: value for name, value in like.defaults.items() if name in known}
        return ZeroRedundancyOptimizer(like.param_groups, type(like), process_group=group, **defaults)

    return Spread(spread.model, True, spread.holding, None, sharded)


def zero2(model: nn.Module, recipe: Recipe) -> Spread:
    """Optimizer states and gradients sharded, weights gathered once a step (ZeRO stage 2), as FSDP2 does it.

    Weights stay whole from forward to the end of backward: "ZeRO-2" of torch's documentation of `fully_shard`.
    """
    return _fully_shard(model, recipe, reshard=False)


def fsdp(model: nn.Module, recipe: Recipe) -> Spread:
    """Weights, gradients and optimizer states sharded, weights gathered block by block (ZeRO stage 3, FSDP2)."""
    return _fully_shard(model, recipe, reshard=True)


def hsdp(model: nn.Module, recipe: Recipe) -> Spread:
    """Fully sharded within groups of ranks, replicated over groups (FSDP2 on a mesh of two dimensions)."""
    return _fully_shard(model, recipe, reshard=True)


def _fully_shard(model: nn.Module, recipe: Recipe, reshard: bool) -> Spread:
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    compute, mesh = recipe.compute, recipe.ranks.mesh
    assert mesh is not None
    replicated = recipe.ranks.layout.dp_replicate > 1
    # Batch norm would get weights of another type than its statistics; autocast does without.
    half = compute.precision == "bf16" and not any(isinstance(part, _BatchNorm) for part in model.modules())
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    options: dict[str, Any] = {
        "mesh": mesh["dp_replicate", "dp_shard"] if replicated else mesh["dp_shard"],
        "reshard_after_forward": reshard if compute.reshard_after_forward is None else compute.reshard_after_forward,
        "mp_policy": policy if half else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy(pin_memory=recipe.ranks.device.type == "cuda")
        if compute.cpu_offload
        else OffloadPolicy(),
    }
    blocks = list(recipe.workload.blocks(model)) if recipe.workload.blocks else []
    for block in blocks:
        fully_shard(block, **options)
    root = fully_shard(model, **options)
    assert isinstance(root, FSDPModule)
    _prefetch(blocks, compute.prefetch_blocks)

    def sync(on: bool) -> None:
        root.set_requires_gradient_sync(on)

    return Spread(model, holding=lambda: _Held(sync))


class _Held:
    """Gradients stay on this rank while the context lasts."""

    def __init__(self, sync: Callable[[bool], None]) -> None:
        self._sync = sync

    def __enter__(self) -> None:
        self._sync(False)

    def __exit__(self, *_exception: object) -> None:
        self._sync(True)


def _prefetch(blocks: Sequence[Any], ahead: int) -> None:
    """Gather so many blocks' weights ahead, in forward and in backward."""
    for number, block in enumerate(blocks if ahead else ()):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(0, number - ahead) : number][::-1])


def by_hand(model: nn.Module, recipe: Recipe) -> Spread:
    """Gradients averaged over the data-parallel ranks after backward: for models that are split besides."""
    group = recipe.ranks.data_group()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def average() -> None:
        averaged([_local(parameter.grad) for parameter in parameters if parameter.grad is not None], group)

    return Spread(model, average=average if group.size() > 1 else None)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient that may be split."""
    from torch.distributed.tensor import DTensor

    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
