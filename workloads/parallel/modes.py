"""What each mode makes of a model: whole replicas, shards, split layers, dealt experts; pipelines in `pipeline.py`.

Each rank, or group of ranks, sees its own samples.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from benchsuite.workloads.layout import reshards
from benchsuite.workloads.parallel.first_weights import Cut
from benchsuite.workloads.parallel.recipe import Make, Parallelized, Recipe, averaged, local

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

ONE_BUCKET_MB = 1 << 20
"""PowerSGD sends several messages a bucket; gloo sends those of different buckets in another order on each rank."""


def parallelize(model: nn.Module, recipe: Recipe) -> Parallelized:
    """What the mode of a layout makes of a model whose layers are split already, where they are to be."""
    layout = recipe.ranks.layout
    if recipe.ranks.mesh is None:
        return data_parallel(model) if layout.name == "data_parallel" else Parallelized(model)
    if layout.ep > 1:
        return ep(model, recipe)
    if layout.zero > 1:
        return fully_sharded(model, recipe, list(recipe.workload.blocks(model)) if recipe.workload.blocks else [])
    replicas = ddp(model, recipe) if layout.tp == layout.pp == 1 else by_hand(model, recipe)
    return zero1(replicas, recipe) if layout.zero else replicas


def data_parallel(model: nn.Module) -> Parallelized:
    """One process that cuts each batch over all its CUDA devices, by threads (torch.nn.DataParallel).

    Models are copied to the devices in every step; DDP does the same work better. What the devices exchange cannot be
    told from their computation.
    """
    return Parallelized(nn.DataParallel(model))


def ddp(model: nn.Module, recipe: Recipe) -> Parallelized:
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
    return Parallelized(wrapped, exchanges=True, holding=wrapped.no_sync)


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


def zero1(replicas: Parallelized, recipe: Recipe) -> Parallelized:
    """Replicas whose optimizer states are dealt to ranks (Rajbhandari et al., "ZeRO", 2020, stage 1).

    After the step each rank broadcasts the weights it has updated. Weights that are split over tp are dealt to the
    ranks that hold the same part of them.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    group = recipe.ranks.data_group()

    def sharded(parameters: Sequence[nn.Parameter], make: Make) -> torch.optim.Optimizer:
        # torch 2.13 cannot broadcast a DTensor: its optimizer is given this rank's parts, in the same memory.
        parts = [nn.Parameter(local(parameter.detach())) for parameter in parameters]
        like = make(parts)
        known = inspect.signature(type(like)).parameters
        defaults = {name: value for name, value in like.defaults.items() if name in known}
        dealt = ZeroRedundancyOptimizer(like.param_groups, type(like), process_group=group, **defaults)
        dealt.register_step_pre_hook(lambda *_: _hand_over(parameters, parts))
        dealt.register_step_post_hook(lambda *_: _forget_gradients(parameters))
        return dealt

    return replace(replicas, optimizer=sharded)


def _hand_over(parameters: Sequence[nn.Parameter], parts: Sequence[nn.Parameter]) -> None:
    """Give this rank's parts of weights the gradients of these."""
    for parameter, part in zip(parameters, parts, strict=True):
        gradient: Any = parameter.grad
        if gradient is not None and hasattr(
            parameter, "placements"
        ):  # an embedding's is whole though its weight is not
            gradient = local(gradient.redistribute(placements=parameter.placements))
        part.grad = gradient


def _forget_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def fully_sharded(model: nn.Module, recipe: Recipe, blocks: Sequence[nn.Module]) -> Parallelized:
    """Weights, gradients and optimizer states sharded, as FSDP2 does it (ZeRO stages 2 and 3).

    Stage 3 gathers weights block by block. In stage 2 they stay whole from forward to the end of backward: "ZeRO-2" of
    torch's documentation of `fully_shard`. With replicas (hsdp) the mesh has two dimensions. `blocks` are
    gathered one by one. What is in no block is wanted first in backward: unless asked otherwise it stays whole.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    compute, layout, mesh = recipe.compute, recipe.ranks.layout, recipe.ranks.mesh
    assert mesh is not None
    # Batch norm would get weights of another type than its statistics; autocast does without.
    half = compute.precision in ("bf16", "fp8") and not any(isinstance(part, _BatchNorm) for part in model.modules())
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    options: dict[str, Any] = {
        "mesh": mesh["dp_replicate", "dp_shard"] if layout.dp_replicate > 1 else mesh["dp_shard"],
        "mp_policy": policy if half else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy(pin_memory=recipe.ranks.device.type == "cuda")
        if compute.cpu_offload
        else OffloadPolicy(),
    }
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshards(layout, compute), **options)
    root = fully_shard(model, reshard_after_forward=bool(compute.reshard_after_forward), **options)
    assert isinstance(root, FSDPModule)
    _prefetch(blocks, compute.prefetch_blocks)

    return Parallelized(model, holding=lambda: _without_exchange(root))


@contextmanager
def _without_exchange(root: "FSDPModule") -> Iterator[None]:
    """Gradients stay on this rank while the context lasts."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)


def _prefetch(blocks: Sequence[Any], ahead: int) -> None:
    """Gather so many blocks' weights ahead, in forward and in backward."""
    for number, block in enumerate(blocks if ahead else ()):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(0, number - ahead) : number][::-1])


def by_hand(
    model: nn.Module,
    recipe: Recipe,
    exchange: Callable[[Sequence[torch.Tensor], dist.ProcessGroup], None] = averaged,
) -> Parallelized:
    """Gradients averaged over the data-parallel ranks after backward: for models that are split besides."""
    group = recipe.ranks.data_group()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def average() -> None:
        exchange([local(parameter.grad) for parameter in parameters if parameter.grad is not None], group)

    return Parallelized(model, average=average if group.size() > 1 else None)


def deal_experts(model: nn.Module, recipe: Recipe) -> dict[str, Cut]:
    """Leave each rank its share of the experts, in place; by the name of each parameter of theirs, which share."""
    assert recipe.workload.experts is not None
    sharing, _ = expert_groups(recipe.ranks.layout.dp, recipe.ranks.layout.ep)
    experts = list(recipe.workload.experts(model))
    for module in experts:
        module.shard(sharing)  # type: ignore[operator]
    dealt = {id(parameter) for module in experts for parameter in module.expert_parameters()}  # type: ignore[operator]
    share = 0, sharing.size(), sharing.rank()
    return {name: share for name, parameter in model.named_parameters() if id(parameter) in dealt}


def ep(model: nn.Module, recipe: Recipe) -> Parallelized:
    """Experts that are dealt to ranks; tokens travel to them and back by all-to-all ("GShard", 2020).

    Gradients of other weights are averaged over all data-parallel ranks, those of an expert over those that hold it.
    """
    assert recipe.workload.experts is not None
    layout, everyone = recipe.ranks.layout, recipe.ranks.data_group()
    _, holders = expert_groups(layout.dp, layout.ep)
    experts = list(recipe.workload.experts(model))
    dealt = [parameter for module in experts for parameter in module.expert_parameters()]  # type: ignore[operator]
    known = {id(parameter) for parameter in dealt}
    replicated = [parameter for parameter in model.parameters() if id(parameter) not in known]

    def average() -> None:
        averaged([parameter.grad for parameter in replicated if parameter.grad is not None], everyone)
        own = [parameter.grad for parameter in dealt if parameter.grad is not None]
        for gradient in own:
            gradient /= layout.ep
        if holders.size() > 1:
            averaged(own, holders)

    return Parallelized(model, average=average)


@cache
def expert_groups(dp: int, ep: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The ranks that share the experts with this one, and those that hold the same experts; all ranks must call it."""
    rank = dist.get_rank()
    found: dict[str, dist.ProcessGroup] = {}
    neighbours = [list(range(start, start + ep)) for start in range(0, dp, ep)]
    holders = [list(range(first, dp, ep)) for first in range(ep)]
    for name, groups in (("sharing", neighbours), ("holders", holders)):
        for members in groups:
            made = dist.new_group(members)
            if rank in members:
                found[name] = made
    return found["sharing"], found["holders"]


def tp(model: nn.Module, recipe: Recipe) -> None:
    """Split the matrices of each layer over ranks, in place (Shoeybi et al., "Megatron-LM", 2019).

    With sequence parallelism the activations between layers are split as well (Korthikanti et al. 2022); with loss
    parallelism the logits stay split over the vocabulary.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    layout, split = recipe.ranks.layout, recipe.workload.tensor_parallel
    assert split is not None and recipe.ranks.mesh is not None
    plan = split.plan(model, layout.sequence_parallel, layout.loss_parallel)
    parallelize_module(model, recipe.ranks.mesh["tp"], dict(plan))
    if recipe.compute.compile:
        _wait_before_blocks(model, recipe)


class _Arrived(torch.autograd.Function):
    """A tensor whose collective is done."""

    @staticmethod
    def forward(_ctx: Any, value: Any) -> torch.Tensor:
        arrived: torch.Tensor = value.wait()
        return arrived

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _wait_before_blocks(model: nn.Module, recipe: Recipe) -> None:
    """Hand on no tensor that is still under way: compiled blocks that are given one fail in backward (torch 2.13).

    What is in the blocks, which are compiled whole, needs no such help.
    """
    blocks = recipe.workload.blocks(model) if recipe.workload.blocks else [model]
    compiled = {module for block in blocks for module in block.modules()}

    def arrived(_module: nn.Module, _given: object, output: Any) -> Any:
        under_way = isinstance(output, _functional_collectives.AsyncCollectiveTensor)
        return _Arrived.apply(output) if under_way else output  # type: ignore[no-untyped-call]

    for module in model.modules():
        if module not in compiled:
            module.register_forward_hook(arrived)


def loss_context(layout_loss_parallel: bool) -> AbstractContextManager[object]:
    """What the loss is computed in: logits that are split over the vocabulary need another cross-entropy."""
    if not layout_loss_parallel:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    context: AbstractContextManager[object] = loss_parallel()
    return context
