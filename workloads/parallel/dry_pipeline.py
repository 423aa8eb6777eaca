"""A pipeline's rank tried without the others: what its stages keep, send and exchange for each microbatch.

torch's schedules ask other ranks for shapes before they start, so a lone rank cannot run one. Here each stage runs one
microbatch, and the schedule says how many are under way at a time.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from benchsuite.workloads.parallel.account import Account, Kept, Sent, gradient_bytes, observed, summed_up
from benchsuite.workloads.parallel.modes import by_hand, loss_context
from benchsuite.workloads.parallel.pipeline import SCHEDULES, Pieces, cut, stage_numbers
from benchsuite.workloads.parallel.recipe import Recipe
from benchsuite.workloads.precision import autocast
from benchsuite.workloads.workload import Batch


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
        average = by_hand(held, recipe).average
        if average is not None:
            average()
    return summed_up(held, gradient_bytes(held), 0, _most_kept(kept_bytes, stages, recipe), sent + seen.found)


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
    with loss_context(recipe.ranks.layout.loss_parallel):
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
