"""Recipe `pp`: the model is cut into stages that hand microbatches on (Huang et al., "GPipe", 2019).

Schedules are PyTorch's: GPipe (with one microbatch: `naive`), 1F1B (Narayanan et al. 2019), interleaved 1F1B (Narayanan
et al. 2021) and interleaved zero-bubble (Qi et al. 2023), the last two with two stages a rank. Waiting for other stages
is marked as `bubble`: it holds what the transfers expose as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from benchsuite.workloads.parallel.modes import fully_sharded, loss_context, parallelize
from benchsuite.workloads.parallel.recipe import Parallelized, Recipe
from benchsuite.workloads.parallel.step import Stepping, Training, on_device, stepping_of
from benchsuite.workloads.parallel.waits import StepClock, Waits
from benchsuite.workloads.precision import autocast
from benchsuite.workloads.workload import Batch, Stage

SCHEDULES: Mapping[str, Any] = {
    "naive": ScheduleGPipe,
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
}


class Pieces(nn.Module):
    """Consecutive pieces of a model; each is given what the one before returned, and the microbatch."""

    def __init__(self, pieces: Sequence[Stage], recipe: Recipe) -> None:
        super().__init__()
        self.pieces = nn.ModuleList([module for module, _ in pieces])
        self._calls = [call for _, call in pieces]
        self._recipe = recipe

    def forward(self, *received: Tensor, **batch: Tensor) -> Any:
        value: Any = received[0] if received else None
        if received and self._recipe.compute.compile:
            value = _Received.apply(value)  # type: ignore[no-untyped-call]
        with autocast(self._recipe.compute.precision, self._recipe.ranks.device):
            for module, call in zip(self.pieces, self._calls, strict=True):
                value = call(module, value, batch)
        return value.contiguous() if self._recipe.compute.compile else value


class _Received(torch.autograd.Function):
    """What a stage is given, whose gradient it sends back: compiled blocks lay tensors out as they like, and gloo and
    NCCL send only what is contiguous."""

    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


class _MarkedStage(PipelineStage):
    """A stage that marks the end of each forward and backward in the step's clock."""

    waits: Waits

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._marked("forward", super().forward_one_chunk, arguments, options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._marked("backward", super().backward_one_chunk, arguments, options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        return self._marked("backward", super().backward_weight_one_chunk, arguments, options)

    def _marked(self, part: str, work: Any, arguments: Any, options: Any) -> Any:
        self.waits.part(part)
        result = work(*arguments, **options)
        self.waits.mark(part)
        return result


def stage_numbers(recipe: Recipe) -> list[int]:
    """The stages of this rank: its own, and those a whole round later."""
    layout = recipe.ranks.layout
    first = layout.place(recipe.ranks.rank).pp
    return [first + layout.pp * turn for turn in range(layout.stages_per_rank)]


def cut(pieces: Sequence[Stage], number: int, of: int) -> Sequence[Stage]:
    """The pieces of one stage of so many: consecutive, as equal in number as can be, the first stages the longer."""
    size, longer = divmod(len(pieces), of)
    start = number * size + min(number, longer)
    return pieces[start : start + size + (number < longer)]


def pp(model: nn.Module, recipe: Recipe) -> list[Pieces]:
    """The stages of this rank; what belongs to others goes to the meta device, which holds nothing."""
    workload, layout = recipe.workload, recipe.ranks.layout
    assert workload.pipeline is not None
    pieces = workload.pipeline.stages(model)
    total, mine = layout.pp * layout.stages_per_rank, stage_numbers(recipe)
    for number in set(range(total)) - set(mine):
        for module, _ in cut(pieces, number, total):
            module.to("meta")
    return [Pieces(cut(pieces, number, total), recipe) for number in mine]


def training_of(model: nn.Module, stages: Sequence[Pieces], recipe: Recipe, global_batch: int) -> Training:
    """The training step of a model whose stages are cut."""
    held = nn.ModuleList(stages)
    running = _Running(stepping_of(parallelized(model, held, recipe), recipe, global_batch))
    schedule = _schedule(stages, running)
    return running.stepping.training(partial(running.step, schedule), model, held, schedule)


def parallelized(model: nn.Module, held: nn.ModuleList, recipe: Recipe) -> Parallelized:
    """What the mode of a layout makes of this rank's stages: each is fully sharded by itself, so that torch finds it.

    torch's stages keep gradients until the last microbatch, and exchange them then.
    """
    if recipe.ranks.layout.zero < 2:
        recipe.place(model, held)
        return parallelize(held, recipe)
    blocks = set(recipe.workload.blocks(model)) if recipe.workload.blocks else set()
    for stage in held:
        fully_sharded(stage, recipe, [module for module in stage.modules() if module in blocks])
    if recipe.first is not None:
        recipe.place(model, held)
    return Parallelized(held)


def _schedule(stages: Sequence[Pieces], running: "_Running") -> Any:
    recipe = running.stepping.recipe
    layout = recipe.ranks.layout
    total, group = layout.pp * layout.stages_per_rank, recipe.ranks.group("pp")
    built = [
        _MarkedStage(stage, number, total, recipe.ranks.device, group=group)
        for stage, number in zip(stages, stage_numbers(recipe), strict=True)
    ]
    for stage in built:
        stage.waits = running.stepping.waits
    kind = SCHEDULES[layout.schedule]
    held: Any = built[0] if issubclass(kind, PipelineScheduleSingle) else built
    return kind(held, layout.microbatches, loss_fn=running.loss)


@dataclass
class _Running:
    """One step of a pipeline."""

    stepping: Stepping
    batch: Batch | None = None

    def loss(self, output: Any, rows: Tensor) -> Tensor:
        """The loss of a microbatch, given which rows of the batch are in it."""
        recipe = self.stepping.recipe
        assert self.batch is not None and recipe.workload.pipeline is not None
        micro = {name: value[rows[0] : rows[-1] + 1] for name, value in self.batch.items()}
        with autocast(recipe.compute.precision, recipe.ranks.device):
            return recipe.workload.pipeline.criterion(output, micro)

    def step(self, schedule: Any, batch: Batch, clock: StepClock) -> Tensor | None:
        """Load to device, run the schedule, communication, optimizer; the loss where this rank holds the last stage."""
        recipe, waits = self.stepping.recipe, self.stepping.waits
        self.batch = on_device(batch, recipe, clock)
        rows = torch.arange(len(next(iter(self.batch.values()))))
        losses: list[Tensor] = []
        waits.begin(clock, "forward", pipeline=True)
        with loss_context(recipe.ranks.layout.loss_parallel):
            schedule.step(target=rows, losses=losses, return_outputs=False, **self.batch)
        waits.end()
        clock.mark("backward")
        self.stepping.end(clock)
        return torch.stack(losses).mean().detach() if losses else None
