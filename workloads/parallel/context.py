"""Context parallelism: each rank holds a part of every sequence, and attention brings the parts together.

Ring attention (Liu et al., "Ring attention with blockwise transformers", 2023): keys and values go round the ranks, and
each rank adds what its queries find in them. All-to-all attention (Jacobs et al., "DeepSpeed Ulysses", 2023): ranks
exchange parts of the sequence for heads, attend to whole sequences by some heads each, and exchange back.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchsuite.workloads.layout import Layout
from benchsuite.workloads.moe import travelled
from benchsuite.workloads.parallel.recipe import Recipe
from benchsuite.workloads.workload import Batch

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)
KEYS, GRADIENTS = 1, 2
"""Tags of messages that are under way at the same time."""


def cp(model: nn.Module, recipe: Recipe) -> None:
    """Let attention reach over the ranks that share a sequence, in place."""
    shared, group = recipe.workload.context_parallel, recipe.ranks.context
    assert shared is not None and group is not None
    attend = ring_attention if recipe.ranks.layout.cp_attention == "ring" else all_to_all_attention
    for attention in shared.attentions(model):
        attention.attend = partial(attend, group=group)  # type: ignore[assignment]


def own_part(batch: Batch, recipe: Recipe) -> Batch:
    """The batch with this rank's part of each sequence; as it is where ranks have whole ones."""
    ranks, shared = recipe.ranks, recipe.workload.context_parallel
    if ranks.context is None:
        return batch
    assert shared is not None
    return shared.cut(batch, partial(positions, ranks.layout, ranks.layout.place(ranks.rank).cp))


def positions(layout: Layout, place: int, length: int, device: torch.device) -> Tensor:
    """The positions in a sequence that a rank holds, (length / cp).

    All-to-all: a consecutive part. Ring: one part from the first half and its counterpart from the second, so that a
    causal mask leaves every rank as much to do ("The Llama 3 herd of models", 2024, section 3.3.2).
    """
    whole = torch.arange(length, device=device)
    if layout.cp_attention == "all_to_all":
        return whole.chunk(layout.cp)[place]
    parts = whole.chunk(2 * layout.cp)
    return torch.cat((parts[place], parts[-1 - place]))


def all_to_all_attention(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Causal attention over a group's consecutive parts: (N, heads, part, head_dim) each -> the same.

    Each rank gets the whole sequence of heads / ranks heads.
    """
    ranks, (key, value) = group.size(), _of_all_heads(query, key, value)
    once = [1] * ranks  # of the first dimension, one entry to every rank
    by_heads = torch.stack(torch.stack((query, key, value)).chunk(ranks, 2))
    of_heads = travelled(by_heads, once, once, group).movedim(0, 3).flatten(3, 4)  # (3, N, heads / ranks, length, dim)
    query, key, value = of_heads.unbind()
    by_parts = torch.stack(scaled_dot_product_attention(query, key, value, is_causal=True).chunk(ranks, 2))
    return travelled(by_parts, once, once, group).movedim(0, 1).flatten(1, 2)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Causal attention over a group whose ranks hold the parts that `positions` deals: (N, heads, part, head_dim)."""
    return cast(Tensor, _Ring.apply(query, *_of_all_heads(query, key, value), group))  # type: ignore[no-untyped-call]


def _of_all_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of grouped heads once for each query's: they travel as often as there are queries."""
    times = query.shape[1] // key.shape[1]
    return (key, value) if times == 1 else (key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))


class _Ring(torch.autograd.Function):
    """Blocks of attention, merged by their log-sum-exps; gradients of keys and values travel with these."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        for turn, held in _round(torch.stack((key, value)), group):
            rows, columns = _seen(turn, group, query.shape[2])
            keys, values = held[:, :, :, columns].unbind()
            found, sums, *extras = _attend(query[:, :, rows], keys, values, turn == 0)
            if turn == 0:  # copies, which the others are merged into: checkpoints keep what kernels return
                merged, normalizer, ctx.extras = found.to(sums.dtype, copy=True), sums.clone(), extras
            else:
                _merge(merged[:, :, rows], normalizer[:, :, rows], found, sums)
        output: Tensor = merged.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.group = group
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, output, normalizer = ctx.saved_tensors
        of_query = torch.zeros_like(query, dtype=normalizer.dtype)
        arrive: Callable[[], Tensor] = partial(torch.zeros_like, torch.stack((key, value)), dtype=normalizer.dtype)
        for turn, held in _round(torch.stack((key, value)), ctx.group):
            rows, columns = _seen(turn, ctx.group, query.shape[2])
            gradient, queries, outputs, sums = (of[:, :, rows] for of in (gradients[0], query, output, normalizer))
            keys, values = held[:, :, :, columns].unbind()
            found, *of_columns = _attend_backward(gradient, queries, outputs, sums, keys, values, turn == 0, ctx.extras)
            of_query[:, :, rows] += found
            of_held = arrive()  # what the ranks before have found for these keys and values
            of_held[:, :, :, columns] += torch.stack(of_columns)
            arrive = _passed_on(of_held, ctx.group, GRADIENTS)
        of_key, of_value = arrive().to(key.dtype).unbind()  # round the ring and home again
        return of_query.to(query.dtype), of_key, of_value, None


def _round(held: Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    """Keys and values of each rank in turn, one's own first; the next travel while these are worked on."""
    for turn in range(group.size()):
        arrive = _passed_on(held, group, KEYS) if turn < group.size() - 1 else None
        yield turn, held
        held = held if arrive is None else arrive()


def _passed_on(payload: Tensor, group: dist.ProcessGroup, tag: int) -> Callable[[], Tensor]:
    """Begin to send this to the next rank of the ring; what is returned waits for what the one before has sent."""
    rank, ranks = group.rank(), group.size()
    arriving = torch.empty_like(payload)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, payload, group=group, tag=tag, group_peer=(rank + 1) % ranks),
            dist.P2POp(dist.irecv, arriving, group=group, tag=tag, group_peer=(rank - 1) % ranks),
        ]
    )

    def arrive(_kept_until_sent: Tensor = payload) -> Tensor:
        wait_for(works)
        return arriving

    return arrive


def wait_for(works: Sequence[dist.Work]) -> None:
    """Wait for messages of a ring. It has a name so that these waits are told from those of a pipeline's messages."""
    for work in works:
        work.wait()


def _seen(turn: int, group: dist.ProcessGroup, length: int) -> tuple[slice, slice]:
    """Which rows of this rank's queries see which of the keys that it holds in a turn, none of them masked but in 0.

    Of an earlier rank's keys the first half lies before all queries here, the second behind them; of a later rank's all
    lie before the second half of the queries, and behind the first.
    """
    everything = slice(None)
    if turn == 0:
        return everything, everything
    source_is_earlier = turn <= group.rank()
    return (everything, slice(length // 2)) if source_is_earlier else (slice(length // 2, None), everything)


def _merge(output: Tensor, normalizer: Tensor, found: Tensor, sums: Tensor) -> None:
    """Add a block to the rows of an attention, in place, each weighted by its share of the exponentials."""
    both = torch.logaddexp(normalizer, sums)
    output *= (normalizer - both).exp().unsqueeze(-1)
    output += found * (sums - both).exp().unsqueeze(-1)
    normalizer.copy_(both)


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Any, ...]:
    """Attention, the log-sum-exp of each row's scores, and what the kernel's backward pass asks for besides."""
    if query.device.type == "cpu":
        output, sums = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
        return output, sums
    if query.dtype in HALF:
        output, sums, *_, state, offset, _ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return output, sums, state, offset
    return by_products(query, key, value, causal)


def _attend_backward(
    gradient: Tensor,
    query: Tensor,
    output: Tensor,
    normalizer: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    extras: Sequence[Any],
) -> Sequence[Tensor]:
    """Gradients of a block's queries, keys and values, given the output and log-sum-exp of *all* blocks."""
    given = gradient, query, key, value, output, normalizer
    if query.device.type == "cpu":
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)
    elif query.dtype in HALF:
        lengths = query.shape[2], key.shape[2]
        # CUDA's kernel does not look at this one's strides, and a part of its rows is not contiguous.
        given = *given[:-1], normalizer.contiguous()
        gradients = aten._scaled_dot_product_flash_attention_backward(
            *given, None, None, *lengths, 0.0, causal, *extras
        )
    else:
        gradients = by_products_backward(*given, causal)
    return cast(Sequence[Tensor], gradients)


def by_products(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """What `_attend` returns, by matrix products: in float32 CUDA has no kernel whose log-sum-exps fit."""
    scores = _scores(query, key, causal)
    sums = scores.logsumexp(-1)
    return (scores - sums.unsqueeze(-1)).exp() @ value, sums


def by_products_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, normalizer: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of `by_products` (Dao et al., "FlashAttention", 2022, appendix B)."""
    weights = (_scores(query, key, causal) - normalizer.unsqueeze(-1)).exp()
    of_scores = weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True)) / math.sqrt(query.shape[-1])
    return of_scores @ key, of_scores.mT @ query, weights.mT @ gradient


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if not causal:
        return scores
    behind = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(behind, -math.inf)
