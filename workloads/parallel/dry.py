"""A layout tried without its devices: one of its ranks, on tensors that hold nothing, in a group of no one else.

What comes out are counts and bytes; numbers are not computed, and nothing is sent. Gradients that DDP would exchange in
buckets go in one message here.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workloads import optim
from workloads.layout import Layout
from workloads.parallel import data, spread, tensor
from workloads.parallel.account import Account, account, local
from workloads.parallel.apply import shape_blocks, spread_data, training_of
from workloads.parallel.spread import Ranks, Recipe, Spread
from workloads.precision import convert
from workloads.spec import ComputeSpec, Variant
from workloads.workload import Workload

PROBE_ELEMENTS = 1024


def dry_account(
    workload: Workload, variant: Variant, layout: Layout, compute: ComputeSpec, rank_batch: int, rank: int = 0
) -> Account:
    """What one rank of a layout would hold and send in a step, in seconds and next to no memory.

    Raises:
        NotImplementedError: what it sends or holds depends on values, of which there are none.
    """
    reason = _depends_on_values(workload, variant, layout, compute)
    if reason:
        raise NotImplementedError(reason)
    cpu = torch.device("cpu")
    # Its states are counted apart: a real optimizer would ask tensors for their values.
    stateless = compute.model_copy(update={"optimizer": "sgd", "fused": False, "channels_last": False})
    with _alone_among(layout, rank) as ranks:
        recipe = Recipe(workload, ranks, stateless)
        with torch.device("meta"):
            model = convert(workload.build(variant), compute.precision)
        shaped = _shaped(model, recipe)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device=cpu)
            whole = shaped or (data.by_hand if layout.world_size > 1 else data.alone)(model, recipe)
            training = training_of(model, whole, recipe, rank_batch * layout.dp)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of views that nobody changes
                found = account(training, workload.synthetic(variant, rank_batch, cpu))
            held = sum(local(parameter).numel() for parameter in model.parameters())
    return replace(found, optimizer_bytes=round(held * _state_bytes_per_element(workload, compute)))


def _depends_on_values(workload: Workload, variant: Variant, layout: Layout, compute: ComputeSpec) -> str | None:
    if layout.pp > 1:
        return f"pp {layout.pp}: what a stage sends depends on what it receives"
    if workload.experts is not None and variant.model.get("num_experts"):
        return "experts: how many tokens travel depends on the tokens"
    if layout.zero == 1:
        return "zero1: which states a rank is dealt depends on the optimizer"
    if compute.comm_hook is not None:
        return f"comm_hook {compute.comm_hook}: what it sends depends on DDP's buckets"
    return "adafactor: its states are factors of each matrix" if compute.optimizer == "adafactor" else None


def _shaped(model: nn.Module, recipe: Recipe) -> Spread | None:
    """Split, checkpointed and sharded on the meta device; None where gradients are averaged in the end."""
    if recipe.ranks.layout.tp > 1:
        tensor.tp(model, recipe)
    shape_blocks(model, recipe.workload, recipe.compute.model_copy(update={"compile": False}))
    return spread_data(model, recipe) if recipe.ranks.layout.zero > 1 else None


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

    spread.mesh_of.cache_clear()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        ranks = spread.ranks_of(layout, torch.device("cpu"))
        ranks.data_group()  # made here, as meshes need real tensors
        yield ranks
    finally:
        spread.mesh_of.cache_clear()
        dist.destroy_process_group()
