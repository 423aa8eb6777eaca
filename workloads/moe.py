"""A mixture of experts in place of an MLP, whose experts can be dealt to ranks.

Shazeer et al., "Outrageously large neural networks" (2017); GShard (Lepikhin et al. 2020); Switch Transformers (Fedus
et al. 2021). Dropless: every token reaches its experts, whatever their load. There is no auxiliary loss to balance that
load. Results are the same from run to run: no sum depends on the order in which threads finish.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from benchsuite.workloads.precision import autocast_type


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Rows from all ranks of the group, in their order: `sent` and `received` count rows by rank."""
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    _all_to_all(arrived, rows.contiguous(), received, sent, group)
    return arrived


def _all_to_all(
    arriving: Tensor, leaving: Tensor, received: list[int] | None, sent: list[int] | None, group: dist.ProcessGroup
) -> None:
    """Waited for by hand: NCCL gives synchronous calls no work to wait for, and waits are what is timed."""
    work = dist.all_to_all_single(arriving, leaving, received, sent, group=group, async_op=True)
    assert work is not None
    work.wait()


class _Travel(torch.autograd.Function):
    """Rows go to other ranks of a group, their gradients the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.way = sent, received, group
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.way
        return _exchange(gradients[0], received, sent, group), None, None, None


def travelled(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Rows from all ranks of the group, in their order; `sent` and `received` count them. Gradients travel back."""
    return cast(Tensor, _Travel.apply(rows, sent, received, group))  # type: ignore[no-untyped-call]


class Experts(nn.Module):
    """MLPs (hidden -> intermediate -> hidden), their weights stacked; expert first in every parameter.

    What is replicated, the router, is not in here: every parameter is an expert's. After `shard(group)` it holds this
    rank's share of them, and their gradients are *sums over the group's ranks*: each rank's tokens add what its own
    loss gives. Where the gradients of other parameters are averaged over all ranks, divide these by the group's size
    and average them over the ranks that hold the same experts.
    """

    def __init__(self, num_experts: int, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.group: dist.ProcessGroup | None = None
        self.up = nn.Parameter(torch.empty(num_experts, intermediate, hidden).normal_(std=0.02))
        self.up_bias = nn.Parameter(torch.zeros(num_experts, intermediate))
        self.down = nn.Parameter(torch.empty(num_experts, hidden, intermediate).normal_(std=0.02))
        self.down_bias = nn.Parameter(torch.zeros(num_experts, hidden))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of rows that are sorted by expert: `counts` (num_experts) rows for each."""
        if self.group is None:
            return torch.cat(self._apply_experts(torch.split(rows, counts.tolist())))
        return self._travel(rows, counts, self.group)

    def _travel(self, rows: Tensor, counts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Send rows to the ranks that hold their experts, and fetch what these made of them."""
        ranks = dist.get_world_size(group)
        local = self.num_experts // ranks
        arriving = torch.empty_like(counts)
        _all_to_all(arriving, counts, None, None, group)
        leaving_by_rank, arriving_by_rank = torch.stack((counts, arriving)).view(2, ranks, local).tolist()
        sent = [sum(row) for row in leaving_by_rank]
        received = [sum(row) for row in arriving_by_rank]
        arrived = travelled(rows, sent, received, group)
        pieces = torch.split(arrived, [count for row in arriving_by_rank for count in row])  # by rank, then by expert
        made = self._apply_experts([torch.cat(pieces[expert::local]) for expert in range(local)])
        by_expert = zip(made, zip(*arriving_by_rank, strict=True), strict=True)
        parts = [torch.split(whole, list(by_rank)) for whole, by_rank in by_expert]
        back = torch.cat([part for by_rank in zip(*parts, strict=True) for part in by_rank])
        return travelled(back, received, sent, group)

    def _apply_experts(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Each local expert's output for its input."""
        weights = (self.up, self.up_bias, self.down, self.down_bias)
        each = zip(inputs, *(weight.unbind() for weight in weights), strict=True)
        return [linear(gelu(linear(x, up, up_bias)), down, down_bias) for x, up, up_bias, down, down_bias in each]

    def same_flops(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What costs as many FLOPs as `forward`, whatever the counts, and needs no values: all rows by one expert."""
        return linear(gelu(linear(rows, self.up[0], self.up_bias[0])), self.down[0], self.down_bias[0])

    def shard(self, group: dist.ProcessGroup) -> None:
        """Keep this rank's share of the experts; from now on tokens travel to theirs within the group.

        Raises:
            ValueError: the group does not divide the experts evenly.
        """
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        if self.num_experts % ranks:
            raise ValueError(f"experts({self.num_experts}) must be a multiple of the ranks that share them({ranks})")
        for name, parameter in list(self.named_parameters()):
            share = parameter.detach().chunk(ranks)[rank].clone()
            setattr(self, name, nn.Parameter(share, parameter.requires_grad))
        self.group = group

    def expert_parameters(self) -> list[nn.Parameter]:
        """The parameters of which every rank of the group holds its own."""
        return list(self.parameters())


class MoE(nn.Module):
    """Each token is worked on by the `top_k` experts its router finds most probable: (..., hidden) -> (..., hidden)."""

    def __init__(self, hidden: int, intermediate: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.experts = Experts(num_experts, hidden, intermediate)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts, (T, top_k) both; float32, as in Switch, whatever the precision.

        The weights of several experts are renormalised to a sum of 1 (GShard). That of a single one is its probability
        (Switch): renormalised it would be 1, and the router would learn nothing.
        """
        with torch.autocast("cpu" if tokens.is_meta else tokens.device.type, enabled=False):
            probability = linear(tokens.float(), self.router.weight.float()).softmax(-1)
            weights, chosen = probability.topk(self.top_k)
            return (weights / weights.sum(-1, keepdim=True) if self.top_k > 1 else weights), chosen

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.route(tokens)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = (flat == torch.arange(self.experts.num_experts, device=flat.device)[:, None]).sum(1)
        # Experts compute in autocast's type anyway: casting first halves what travels.
        # Copies first, then a permutation: the gradient of a permutation adds nothing up, in whatever order.
        copies = tokens.to(autocast_type(tokens)).unsqueeze(1).expand(-1, self.top_k, -1).flatten(0, 1)
        made: Tensor = self.experts(copies[order], counts)[order.argsort()].unflatten(0, (-1, self.top_k))
        return (made * weights.to(made.dtype).unsqueeze(-1)).sum(1).view_as(x)
