"""A layout tried without its devices: one of its ranks, on tensors that hold nothing, in a group of no one else.

What comes out are counts and bytes; numbers are not computed, and nothing is sent. Gradients that DDP would exchange in
buckets go in one message here.

torch's schedules of pipelines ask other ranks for shapes before they start, so a lone rank cannot run one. Each stage
runs one microbatch instead, and the schedule says how many are under way at a time.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage

from benchsuite.workloads import optim
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel import context, modes
from benchsuite.workloads.parallel import recipe as recipes
from benchsuite.workloads.parallel.account import (
    Account,
    Kept,
    Sent,
    account,
    gradient_bytes,
    observed,
    summed_up,
    wire_bytes,
)
from benchsuite.workloads.parallel.apply import shape_blocks
from benchsuite.workloads.parallel.pipeline import SCHEDULES, Pieces, cut, stage_numbers
from benchsuite.workloads.parallel.recipe import Parallelized, Ranks, Recipe, dealt, local
from benchsuite.workloads.parallel.step import stepping_of
from benchsuite.workloads.precision import autocast, convert
from benchsuite.workloads.spec import ComputeSpec, Variant
from benchsuite.workloads.workload import Batch, Workload

PROBE_ELEMENTS = 1024


def dry_account(
    workload: Workload,
    variant: Variant,
    layout: Layout,
    compute: ComputeSpec,
    rank_batch: int,
    rank: int = 0,
    on_cuda: bool = False,
) -> Account:
    """What one rank of a layout would hold and send in a step, in seconds and next to no memory.

    `on_cuda`: attention keeps no scores under dropout either, as CUDA's kernels draw them again; CPUs' keep them.

    Raises:
        NotImplementedError: what it sends or holds depends on values or other ranks, of which there are none.
    """
    if layout.engine != "torch":
        raise NotImplementedError(f"engine {layout.engine}: what it holds and sends is counted when it runs")
    reason = _not_countable(workload, variant, layout, compute)
    if reason:
        raise NotImplementedError(reason)
    cpu = torch.device("cpu")
    # Its states are counted apart: a real optimizer would ask tensors for their values.
    # So would the scaling of float16 and float8; what is kept for these is as large as bfloat16.
    half = "bf16" if compute.precision in ("fp16", "fp8") else compute.precision
    stateless = compute.model_copy(
        update={"optimizer": "sgd", "fused": False, "channels_last": False, "precision": half}
    )
    with _alone_among(layout, rank) as ranks:
        recipe = Recipe(workload, ranks, stateless)
        with torch.device("meta"):
            model = convert(workload.build(variant), half)
        if on_cuda:
            _without_dropout_of_scores(model)
        shaped = _shaped(model, recipe)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device=cpu)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of views that nobody changes
                found = _counted(model, shaped, recipe, variant, rank_batch)
            held = [p for p in model.parameters() if layout.pp == 1 or p.grad is not None]  # else another stage's
            shapes = [tuple(local(parameter).shape) for parameter in held]
    return _with_techniques(found, shapes, workload, layout, compute, rank)


def _without_dropout_of_scores(model: nn.Module) -> None:
    """Attention, which knows its dropout as a number, without it: CPUs' kernel that stores no scores has none."""
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            setattr(module, "dropout", 0.0)  # noqa: B010  mypy takes it for a tensor


def _not_countable(workload: Workload, variant: Variant, layout: Layout, compute: ComputeSpec) -> str | None:
    if workload.experts is not None and variant.model.get("num_experts"):
        return "experts: how many tokens travel depends on the tokens"
    if compute.comm_hook == "powersgd":
        return "comm_hook powersgd: what it sends depends on DDP's buckets"
    if layout.pp > 1 and layout.zero > 1:
        return f"zero {layout.zero} with pp: when weights are gathered depends on the stages' turns"
    return None


def _shaped(model: nn.Module, recipe: Recipe) -> Parallelized | None:
    """Split, checkpointed and sharded on the meta device; None where gradients are averaged in the end."""
    if recipe.ranks.layout.tp > 1:
        modes.tp(model, recipe)
    if recipe.ranks.layout.cp > 1:
        context.cp(model, recipe)
    shape_blocks(model, recipe.workload, recipe.compute.model_copy(update={"compile": False}))
    return modes.parallelize(model, recipe) if recipe.ranks.layout.zero > 1 else None


def _counted(
    model: nn.Module, shaped: Parallelized | None, recipe: Recipe, variant: Variant, rank_batch: int
) -> Account:
    layout, workload, cpu = recipe.ranks.layout, recipe.workload, recipe.ranks.device
    if layout.pp > 1:
        micro = workload.synthetic(variant, rank_batch // layout.microbatches, cpu)
        return stages_account(model, recipe, context.own_part(micro, recipe))
    whole = shaped or (modes.by_hand(model, recipe) if layout.world_size > 1 else Parallelized(model))
    stepping = stepping_of(whole, recipe, rank_batch * layout.dp)
    return account(stepping.training(stepping.step, model, model), workload.synthetic(variant, rank_batch, cpu))


def _with_techniques(
    found: Account,
    shapes: list[tuple[int, ...]],
    workload: Workload,
    layout: Layout,
    compute: ComputeSpec,
    rank: int,
) -> Account:
    """An account with what was left out: states of the optimizer, and what ZeRO 1 and compressed gradients send."""
    if compute.comm_hook is not None and compute.precision != "pure_bf16":
        saved = wire_bytes("all_reduce", found.gradients_bytes // 2, layout.replicas)
        found = replace(found, wire_bytes=found.wire_bytes - saved)
    if layout.zero == 1:
        element = (torch.bfloat16 if compute.precision == "pure_bf16" else torch.float32).itemsize
        sent = wire_bytes("broadcast", element * sum(map(prod, shapes)), layout.replicas)
        counts = {**found.collectives, "broadcast": len(shapes)}
        found = replace(found, wire_bytes=found.wire_bytes + sent, collectives=counts)
        place = layout.place(rank)
        shapes = dealt(shapes, prod, layout.replicas)[place.dp * layout.cp + place.cp]
    if compute.optimizer == "adafactor":
        return replace(found, optimizer_bytes=sum(map(_adafactor_bytes, shapes)))
    held = sum(map(prod, shapes))
    return replace(found, optimizer_bytes=round(held * _state_bytes_per_element(workload, compute)))


def _adafactor_bytes(shape: tuple[int, ...]) -> int:
    """A mean of squares for each row and column of a matrix, or for each element of less (Shazeer and Stern 2018)."""
    elements = prod(shape)
    kept = elements if len(shape) < 2 else elements // shape[-1] + elements // shape[-2]
    return kept * torch.float32.itemsize


def _state_bytes_per_element(workload: Workload, compute: ComputeSpec) -> float:
    """Bytes that the optimizer keeps for each element of a parameter, found on a small real one."""
    dtype = torch.bfloat16 if compute.precision == "pure_bf16" else torch.float32
    weight = nn.Parameter(torch.zeros(PROBE_ELEMENTS, dtype=dtype))
    optimizer = optim.make(workload, compute, [weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    held = [int(value.nbytes) for value in states if value is not None and value.numel() > 1]
    return sum(held) / PROBE_ELEMENTS


@contextmanager
def _alone_among(layout: Layout, rank: int) -> Iterator[Ranks]:
    """A process group of a layout's ranks, of which only this one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _forget_groups()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        ranks = recipes.ranks_of(layout, torch.device("cpu"))
        ranks.data_group()  # made here, as meshes need real tensors
        yield ranks
    finally:
        _forget_groups()
        dist.destroy_process_group()


def _forget_groups() -> None:
    """Caches of meshes and of what DTensor does on them name process groups, which do not last here."""
    from torch.distributed.tensor import DTensor, debug

    recipes.mesh_of.cache_clear()
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    else:  # torch 2.6 clears its cache by no name of its own
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()


def stages_account(model: nn.Module, recipe: Recipe, micro: Batch) -> Account:
    """What this rank holds and sends in a step whose microbatches are like this one; optimizer states left out."""
    workload, layout = recipe.workload, recipe.ranks.layout
    assert workload.pipeline is not None
    pieces = workload.pipeline.stages(model)
    total, mine = layout.pp * layout.stages_per_rank, stage_numbers(recipe)
    stages = {number: Pieces(cut(pieces, number, total), recipe) for number in range(total)}
    held = nn.ModuleList([stages[number] for number in mine])
    value: Tensor | None = None
    kept_bytes: dict[int, int] = {}
    sent: list[Sent] = []
    for number, stage in stages.items():
        if number not in mine:
            with torch.no_grad():
                value = _run(stage, value, micro)
            continue
        kept = Kept()
        with observed(kept) as seen:
            value, messages = _one_microbatch(stage, value, micro, recipe, last=number == total - 1)
        kept_bytes[number] = kept.peak_bytes
        sent += layout.microbatches * (seen.found + messages)
    with observed(Kept()) as seen:
        average = modes.by_hand(held, recipe).average
        if average is not None:
            average()
    gradients = gradient_bytes(held.parameters())
    return summed_up(held, gradients, 0, _most_kept(kept_bytes, stages, recipe), sent + seen.found)


def _run(stage: Pieces, received: Tensor | None, micro: Batch) -> Tensor:
    output: Tensor = stage(**micro) if received is None else stage(received, **micro)
    return output


def _one_microbatch(
    stage: Pieces, received: Tensor | None, micro: Batch, recipe: Recipe, last: bool
) -> tuple[Tensor, list[Sent]]:
    """Forward and backward of a stage; what it returned, and what went to the stages beside it."""
    assert recipe.workload.pipeline is not None
    messages: list[Sent] = []
    if received is not None:
        received = received.detach().requires_grad_()
        messages.append(("send", received.nbytes, 2))  # its gradient
    with modes.loss_context(recipe.ranks.layout.loss_parallel):
        output = _run(stage, received, micro)
        if last:
            with autocast(recipe.compute.precision, recipe.ranks.device):
                loss = recipe.workload.pipeline.criterion(output, micro)
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            messages.append(("send", output.nbytes, 2))
            output.backward(torch.empty_like(output))  # type: ignore[no-untyped-call]
    return output.detach(), messages


def _most_kept(kept_bytes: Mapping[int, int], stages: Mapping[int, Pieces], recipe: Recipe) -> int:
    """Most bytes of activations at one time, by the schedule's order.

    GPipe keeps those of all microbatches, 1F1B of as many as there are stages from here on (Narayanan et al. 2019). Of
    stages that take turns on a rank torch's own order is followed: a forward adds, the last backward of it takes away.
    """
    layout, rank = recipe.ranks.layout, recipe.ranks
    place = layout.place(rank.rank).pp
    if layout.stages_per_rank == 1:
        behind = layout.pp - 1 - place
        number = min(layout.microbatches, behind + 1) if layout.schedule == "1f1b" else layout.microbatches
        return number * sum(kept_bytes.values())
    held = [
        PipelineStage(stages[number], number, len(stages), rank.device, group=rank.group("pp")) for number in kept_bytes
    ]
    schedule = SCHEDULES[layout.schedule](held, layout.microbatches, loss_fn=recipe.workload.loss)
    now = most = 0
    for action in filter(None, schedule.pipeline_order[place]):
        kind = action.computation_type.value
        if kind == "F":
            now += kept_bytes[action.stage_index]
        elif kind in ("B", "W"):
            now -= kept_bytes[action.stage_index]
        most = max(most, now)
    return most
