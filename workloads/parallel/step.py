"""One step of training, `step(batch, clock) -> loss`: what a trial calls. Pipelines end theirs as all others do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.workloads import optim
from benchsuite.workloads.parallel.context import own_part
from benchsuite.workloads.parallel.modes import loss_context
from benchsuite.workloads.parallel.recipe import Parallelized, Recipe, full_state
from benchsuite.workloads.parallel.waits import StepClock, Waits, mark_waits
from benchsuite.workloads.precision import Scaler, autocast, convert_batch
from benchsuite.workloads.workload import Batch


@dataclass(frozen=True)
class Training:
    """What the trial runs: one step, and the full state gathered from all ranks."""

    step: Callable[[Batch, StepClock], Tensor | None]
    """The step, whose loss is that of this rank's samples; None where another rank has it."""
    gather_state: Callable[[], dict[str, Tensor]]
    model: nn.Module
    """What this rank holds of it."""
    optimizer: torch.optim.Optimizer
    scaler: Scaler
    keep: Sequence[object] = field(default_factory=list)
    told: Callable[[], Mapping[str, Any]] = dict
    """What an engine knows of its steps and torch does not see: fields of an account, and figures, by name."""


@dataclass(frozen=True)
class Stepping:
    """What takes the steps of a model that a mode has laid out."""

    recipe: Recipe
    parallelized: Parallelized
    update: optim.Update
    waits: Waits

    def step(self, batch: Batch, clock: StepClock) -> Tensor:
        """Load to device, forward and backward of each microbatch, communication, optimizer."""
        parts = self.recipe.compute.grad_accum
        micros = microbatches(on_device(batch, self.recipe, clock), parts)
        self.waits.begin(clock, "forward")
        if self.recipe.workload.targets is not None:
            add_mean_targets(micros, self.recipe)
        losses = []
        for micro in micros[:-1]:
            with self.parallelized.holding():
                losses.append(self._backward(micro, clock, last=False))
        losses.append(self._backward(micros[-1], clock, last=True))
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        self.end(clock)
        return loss

    def _backward(self, micro: Batch, clock: StepClock, last: bool) -> Tensor:
        """Forward and backward of one microbatch; its loss."""
        compute, workload = self.recipe.compute, self.recipe.workload
        self.waits.begin(clock, "forward")
        with loss_context(self.recipe.ranks.layout.loss_parallel):
            with autocast(compute.precision, self.recipe.ranks.device):
                loss = workload.loss(self.parallelized.model, micro)
            clock.mark("forward")
            self.waits.begin(clock, "backward")
            told_apart = last and self.parallelized.exchanges
            if told_apart:
                self.waits.end()
                _mark_backward_end(loss, clock)
            self.update.scaler.scale(loss / compute.grad_accum).backward()  # type: ignore[no-untyped-call]
        clock.mark("communication" if told_apart else "backward")
        return loss.detach()

    def end(self, clock: StepClock) -> None:
        """Average gradients where that is done by hand, and update."""
        if self.parallelized.average is not None:
            self.waits.end()
            self.parallelized.average()
            clock.mark("communication")
        self.waits.begin(clock, "optimizer")
        self.update()
        self.waits.end()
        clock.mark("optimizer")

    def training(
        self, step: Callable[[Batch, StepClock], Tensor | None], whole: nn.Module, held: nn.Module, *keep: object
    ) -> Training:
        """What the trial runs: a step; the state of the whole model, of which this rank holds what is `held`."""
        gather = partial(full_state, whole, self.recipe)
        return Training(step, gather, held, self.update.optimizer, self.update.scaler, [self.parallelized, *keep])


def stepping_of(parallelized: Parallelized, recipe: Recipe, global_batch: int) -> Stepping:
    """Make the optimizer that was asked for, and its learning rates."""
    make = partial(optim.make, recipe.workload, recipe.compute)
    parameters = list(parallelized.model.parameters())
    optimizer = parallelized.optimizer(parameters, make) if parallelized.optimizer else make(parameters)
    update = optim.update_of(optimizer, recipe.compute, global_batch, recipe.ranks.device)
    waits = waits_of_this_process() if recipe.ranks.mesh is not None else Waits()
    return Stepping(recipe, parallelized, update, waits)


@cache
def waits_of_this_process() -> Waits:
    """The one that marks: what is replaced is replaced once."""
    return mark_waits()


def on_device(batch: Batch, recipe: Recipe, clock: StepClock) -> Batch:
    """A batch on this rank's device, made ready for the model, of the type and layout of memory that were asked for.

    The clock's part `h2d` ends with the copies; what is done to the batch on the device belongs to the forward pass.
    """
    moved = {name: value.to(recipe.ranks.device, non_blocking=True) for name, value in batch.items()}
    clock.mark("h2d")
    if recipe.workload.arrive is not None:
        moved = recipe.workload.arrive(moved)
    moved = own_part(convert_batch(moved, recipe.compute.precision), recipe)
    if not recipe.compute.channels_last:
        return moved
    return {
        name: value.to(memory_format=channels_innermost(value)) if value.ndim in (4, 5) else value
        for name, value in moved.items()
    }


def channels_innermost(value: Tensor) -> torch.memory_format:
    """The layout in memory of images, or of volumes, whose channels are innermost."""
    return torch.channels_last if value.ndim == 4 else torch.channels_last_3d


def microbatches(batch: Batch, number: int) -> list[Batch]:
    """A batch in equal pieces along its first dimension."""
    if number == 1:
        return [dict(batch)]
    pieces = {name: value.chunk(number) for name, value in batch.items()}
    return [{name: values[at] for name, values in pieces.items()} for at in range(number)]


def add_mean_targets(micros: list[Batch], recipe: Recipe) -> None:
    """What the loss is a mean over, averaged over microbatches and ranks, so that sums of means are global means."""
    assert recipe.workload.targets is not None
    counts = [recipe.workload.targets(micro) for micro in micros]
    for name in counts[0]:
        mean = torch.stack([count[name].float() for count in counts]).mean()
        if recipe.ranks.layout.dp > 1:
            group = recipe.ranks.data_group()
            work = dist.all_reduce(mean, group=group, async_op=True)
            assert work is not None
            work.wait()  # NCCL gives synchronous calls no work to wait for, and waits are what is timed
            mean = mean / group.size()
        for micro in micros:
            micro[name] = mean


def _mark_backward_end(loss: Tensor, clock: StepClock) -> None:
    """Note when the backward computation is done, before the engine waits for the exchange.

    Engine callbacks run in the order of queueing; this one is queued when backward starts, DDP's wait later.
    """

    def queue(_gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: clock.mark("backward"))

    loss.register_hook(queue)  # type: ignore[no-untyped-call]
