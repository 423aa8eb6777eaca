"""Recipe `ep`: experts are dealt to ranks, and tokens travel to their experts and back by all-to-all.

Lepikhin et al., "GShard" (2020). Other weights are replicated; their gradients are averaged over all data-parallel
ranks, those of an expert over the ranks that hold it.
"""

from functools import cache

import torch.distributed as dist
from torch import nn

from benchsuite.workloads.parallel.spread import Recipe, Spread, averaged


def ep(model: nn.Module, recipe: Recipe) -> Spread:
    """Deal the experts to ranks, in place, and average gradients by hand after backward."""
    assert recipe.workload.experts is not None
    layout, everyone = recipe.ranks.layout, recipe.ranks.data_group()
    sharing, holders = expert_groups(layout.dp, layout.ep)
    experts = list(recipe.workload.experts(model))
    for module in experts:
        module.shard(sharing)  # type: ignore[operator]
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

    return Spread(model, average=average)


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
