"""The whole state of a model that is spread over ranks, gathered."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.workloads.parallel.spread import Recipe


def full_state(modules: Sequence[nn.Module], recipe: Recipe) -> dict[str, Tensor]:
    """Every weight and buffer by its name in the unspread model, on the CPU, on every rank. All ranks must call it."""
    states = [module.state_dict() for module in modules]
    own = {name: _whole(value) for state in states for name, value in state.items() if not value.is_meta}
    if recipe.ranks.layout.ep > 1:
        own |= _gathered_experts(modules, recipe)
    if recipe.ranks.layout.pp == 1:
        return own
    parts: list[Any] = [None] * recipe.ranks.layout.pp
    dist.all_gather_object(parts, own, group=recipe.ranks.group("pp"))
    return {name: value for part in parts for name, value in part.items()}


def _whole(value: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.detach().cpu().clone()


def _gathered_experts(modules: Sequence[nn.Module], recipe: Recipe) -> dict[str, Tensor]:
    """Expert weights of all ranks that share them, in order."""
    assert recipe.workload.experts is not None
    found = {}
    for module in modules:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for experts in recipe.workload.experts(module):
            group = experts.group
            for parameter in experts.expert_parameters():  # type: ignore[operator]
                parts = [torch.empty_like(parameter) for _ in range(recipe.ranks.layout.ep)]
                dist.all_gather(parts, parameter.detach().contiguous(), group=group)
                found[names[id(parameter)]] = torch.cat(parts).cpu()
    return found
