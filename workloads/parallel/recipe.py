"""What a mode is given of a model's training, and what it makes of the model; the whole state, gathered again."""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel.first_weights import Cut, FirstWeights
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Workload

WEIGHTS = ("pp", "dp_replicate", "dp_shard", "tp")
SEQUENCES = ("pp_dp", "cp", "tp")
"""Dimensions of meshes: of what holds the weights, and of what shares sequences."""
Item = TypeVar("Item")
Make = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
MakeOptimizer = Callable[[Sequence[nn.Parameter], Make], torch.optim.Optimizer]


@dataclass(frozen=True)
class Parallelized:
    """A model as a mode has laid it over ranks.

    `exchanges`: its backward pass ends with an exchange of gradients that can be told apart. `holding` is the context
    of microbatches whose gradients stay here; `average` exchanges them by hand after the last.
    """

    model: nn.Module
    exchanges: bool = False
    holding: Callable[[], AbstractContextManager[object]] = nullcontext
    average: Callable[[], None] | None = None
    optimizer: MakeOptimizer | None = None
    """Makes the optimizer from the one that was asked for, where that will not do."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a trial as a mesh, and this one's place among them."""

    layout: Layout
    device: torch.device
    rank: int = 0
    mesh: DeviceMesh | None = None
    """Dimensions pp, dp_replicate, dp_shard, tp; None for one rank. Ranks that share sequences count as dp_shard: their
    weights are averaged and sharded like those of ranks with other samples."""
    context: dist.ProcessGroup | None = None
    """The ranks that share this one's sequences; None where each has whole ones."""

    def group(self, *names: str) -> dist.ProcessGroup:
        """The process group of this rank along one dimension, or several taken together."""
        assert self.mesh is not None
        along = self.mesh[names[0]] if len(names) == 1 else self.mesh[names]._flatten()
        return along.get_group()

    def data_group(self) -> dist.ProcessGroup:
        """The ranks that hold the same weights and see other samples, or other parts of sequences."""
        return self.group("dp_replicate", "dp_shard")


@dataclass(frozen=True)
class Recipe:
    """What every recipe is given besides the model."""

    workload: Workload
    ranks: Ranks
    compute: ComputeSpec
    first: FirstWeights | None = None
    """What gives weights to a model on the meta device; None: it has them."""

    def place(
        self, model: nn.Module, held: nn.Module | None = None, shares: Mapping[str, Cut] = MappingProxyType({})
    ) -> None:
        """Bring a model, or what is `held` of it here, to this rank's device, with its first weights.

        `shares` are as in `FirstWeights.fill`.
        """
        ranks, held = self.ranks, held or model
        if self.first is None:
            held.to(ranks.device)
            return
        off_device = self.compute.cpu_offload and ranks.layout.engine == "torch"
        held.to_empty(device=torch.device("cpu") if off_device else ranks.device)
        if off_device:  # weights alone are
            for module in held.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(ranks.device))
        self.first.fill(model, shares)


def ranks_of(layout: Layout, device: torch.device) -> Ranks:
    """The mesh of a layout over the process group, which all ranks must make together."""
    if not dist.is_initialized():
        return Ranks(layout, device)
    shape = (layout.pp, layout.dp_replicate, layout.replicas // layout.dp_replicate, layout.tp)
    mesh = mesh_of(device.type, WEIGHTS, shape)
    context = None
    if layout.cp > 1:
        context = mesh_of(device.type, SEQUENCES, (layout.pp * layout.dp, layout.cp, layout.tp)).get_group("cp")
    return Ranks(layout, device, dist.get_rank(), mesh, context)


@cache
def mesh_of(device_type: str, names: tuple[str, ...], shape: tuple[int, ...]) -> DeviceMesh:
    """One for each shape: its process groups hold threads and connections for as long as the process lives."""
    return init_device_mesh(device_type, shape, mesh_dim_names=names)


def first_address() -> str:
    """The address by which ranks reached the first one; where they met otherwise, they are on one machine."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else socket.gethostbyname("localhost")


def averaged(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Average gradients over a group in place, in one message for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for same in by_dtype.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in same])
        dist.all_reduce(flat, group=group)
        flat /= group.size()
        for gradient, part in zip(same, torch.split(flat, [gradient.numel() for gradient in same]), strict=True):
            gradient.copy_(part.view_as(gradient))


def dealt(items: Iterable[Item], size: Callable[[Item], int], ranks: int) -> list[list[Item]]:
    """Items dealt to ranks as ZeroRedundancyOptimizer does: each, the largest first, to the one that has the least."""
    found: list[list[Item]] = [[] for _ in range(ranks)]
    for item in sorted(items, key=size, reverse=True):
        min(found, key=lambda held: sum(map(size, held))).append(item)
    return found


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be split."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def full_state(model: nn.Module, recipe: Recipe) -> dict[str, Tensor]:
    """Every weight and buffer by its name in the model as built, on the CPU, on every rank. All ranks must call it."""
    own = {name: _whole(value) for name, value in model.state_dict().items() if not value.is_meta}
    if recipe.ranks.layout.ep > 1:
        own |= _gathered_experts(model, recipe)
    if recipe.ranks.layout.pp == 1:
        return own
    parts: list[Any] = [None] * recipe.ranks.layout.pp
    dist.all_gather_object(parts, own, group=recipe.ranks.group("pp"))
    return {name: value for part in parts for name, value in part.items()}


def _whole(value: Tensor) -> Tensor:
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().cpu().clone()


def _gathered_experts(model: nn.Module, recipe: Recipe) -> dict[str, Tensor]:
    """Expert weights of all ranks that share them, in order."""
    assert recipe.workload.experts is not None
    found = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for experts in recipe.workload.experts(model):
        for parameter in experts.expert_parameters():  # type: ignore[operator]
            parts = [torch.empty_like(parameter) for _ in range(recipe.ranks.layout.ep)]
            dist.all_gather(parts, parameter.detach().contiguous(), group=experts.group)
            found[names[id(parameter)]] = torch.cat(parts).cpu()
    return found
