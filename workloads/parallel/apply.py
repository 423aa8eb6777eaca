"""The recipe: spread a model over ranks, and give the trial one callable, `step(batch, clock) -> loss`.

Read from top to bottom: tensor parallel, checkpointing, compilation, then the spread of samples; pipelines in
`pipeline.py` do the same for each of their stages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchsuite.workloads.parallel import data, expert, tensor
from benchsuite.workloads.parallel.spread import Recipe, Spread
from benchsuite.workloads.parallel.waits import StepClock, Waits, mark_waits
from benchsuite.workloads.precision import Scaler, autocast, convert_batch
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Batch, Workload

SAVED_BY_SELECTIVE = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""What selective checkpointing keeps: the operations that would take longest to do again."""
_waits: list[Waits] = []


@dataclass(frozen=True)
class Training:
    """What the trial runs: one step, and the full state gathered from all ranks."""

    step: Callable[[Batch, StepClock], Tensor | None]
    """Its loss is that of this rank's samples; None where another rank has it."""
    gather_state: Callable[[], dict[str, Tensor]]
    modules: Sequence[nn.Module]
    """What this rank holds of the model."""
    optimizer: torch.optim.Optimizer
    scaler: Scaler
    keep: list[object] = field(default_factory=list)


def spread_data(model: nn.Module, recipe: Recipe) -> Spread:
    """The recipe by which samples are spread over a layout's ranks."""
    layout = recipe.ranks.layout
    if recipe.ranks.mesh is None:
        return (data.data_parallel if layout.name == "data_parallel" else data.alone)(model, recipe)
    if layout.ep > 1:
        return expert.ep(model, recipe)
    if layout.zero == 3:
        return (data.hsdp if layout.dp_replicate > 1 else data.fsdp)(model, recipe)
    if layout.zero:
        return (data.zero1 if layout.zero == 1 else data.zero2)(model, recipe)
    return data.ddp(model, recipe) if layout.tp == layout.pp == 1 else data.by_hand(model, recipe)


def shape_blocks(model: nn.Module, workload: Workload, compute: ComputeSpec) -> None:
    """Checkpoint and compile the blocks of a model, in place, so that the names of its weights stay.

    What is done again in backward updates batch norm's running statistics again; training does not use them.
    """
    if compute.activation_checkpointing == "none" and not compute.compile:
        return
    blocks = list(workload.blocks(model) if workload.blocks else [model])
    if compute.compile:  # all blocks share one count of recompilations, beyond which torch falls back in silence
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
    for block in blocks:
        if compute.activation_checkpointing != "none":
            block.forward = _checkpointed(block.forward, compute.activation_checkpointing)
        if compute.compile:
            block.compile(dynamic=False)


def _checkpointed(forward: Callable[..., object], how: str) -> Callable[..., object]:
    if how == "full":
        return partial(checkpoint, forward, use_reentrant=False)
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)


def _policy(_context: object, operation: object, *_arguments: object, **_options: object) -> CheckpointPolicy:
    kept = operation in SAVED_BY_SELECTIVE
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def to_channels_last(model: nn.Module) -> nn.Module:
    """Weights of convolutions with channels innermost, of two dimensions or three."""
    for parameter in model.parameters():
        if parameter.ndim in (4, 5):
            parameter.data = parameter.data.to(memory_format=_innermost(parameter))
    return model


def _innermost(value: Tensor) -> torch.memory_format:
    return torch.channels_last if value.ndim == 4 else torch.channels_last_3d


def training_of(model: nn.Module, spread: Spread, recipe: Recipe, global_batch: int) -> Training:
    """The training step of a model that has been spread."""
    from benchsuite.workloads import optim

    compute, device = recipe.compute, recipe.ranks.device
    make = partial(optim.make, recipe.workload, compute)
    parameters = list(spread.model.parameters())
    optimizer = spread.optimizer(parameters, make) if spread.optimizer else make(parameters)
    rates = optim.schedule(optimizer, compute, global_batch)
    scaler = Scaler(compute.precision, device)
    waits = waits_of_this_process() if recipe.ranks.mesh is not None else Waits()
    stepping = _Stepping(recipe, spread, optimizer, scaler, waits, rates)
    from benchsuite.workloads.parallel.state import full_state

    return Training(stepping.step, lambda: full_state([model], recipe), [model], optimizer, scaler, [spread])


def waits_of_this_process() -> Waits:
    """The one that marks: what is replaced is replaced once."""
    if not _waits:
        _waits.append(mark_waits())
    return _waits[0]


@dataclass(frozen=True)
class _Stepping:
    """One step of everything but pipelines."""

    recipe: Recipe
    spread: Spread
    optimizer: torch.optim.Optimizer
    scaler: Scaler
    waits: Waits
    rates: torch.optim.lr_scheduler.LambdaLR | None

    def step(self, batch: Batch, clock: StepClock) -> Tensor:
        """Load to device, forward and backward of each microbatch, exchange, update."""
        parts = self.recipe.compute.grad_accum
        micros = microbatches(on_device(batch, self.recipe), parts)
        clock.mark("h2d")
        self.waits.begin(clock, "forward")
        if self.recipe.workload.targets is not None:
            add_mean_targets(micros, self.recipe)
        losses = []
        for micro in micros[:-1]:
            with self.spread.holding():
                losses.append(self._backward(micro, clock, last=False))
        losses.append(self._backward(micros[-1], clock, last=True))
        self._exchange(clock)
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        self._update(clock)
        return loss

    def _backward(self, micro: Batch, clock: StepClock, last: bool) -> Tensor:
        """Forward and backward of one microbatch; its loss."""
        compute, workload = self.recipe.compute, self.recipe.workload
        self.waits.begin(clock, "forward")
        with tensor.loss_context(self.recipe.ranks.layout.loss_parallel):
            with autocast(compute.precision, self.recipe.ranks.device):
                loss = workload.loss(self.spread.model, micro)
            clock.mark("forward")
            self.waits.begin(clock, "backward")
            told_apart = last and self.spread.exchanges
            if told_apart:
                self.waits.end()
                _mark_backward_end(loss, clock)
            self.scaler.scale(loss / compute.grad_accum).backward()  # type: ignore[no-untyped-call]
        clock.mark("communication" if told_apart else "backward")
        return loss.detach()

    def _exchange(self, clock: StepClock) -> None:
        if self.spread.average is not None:
            self.waits.end()
            self.spread.average()
            clock.mark("communication")

    def _update(self, clock: StepClock) -> None:
        self.waits.begin(clock, "optimizer")
        self.scaler.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        if self.rates is not None:
            self.rates.step()
        self.waits.end()
        clock.mark("optimizer")


def on_device(batch: Batch, recipe: Recipe) -> Batch:
    """A batch on this rank's device, of the precision's type and the layout of memory that was asked for."""
    moved = {name: value.to(recipe.ranks.device, non_blocking=True) for name, value in batch.items()}
    moved = convert_batch(moved, recipe.compute.precision)
    if not recipe.compute.channels_last:
        return moved
    return {
        name: value.to(memory_format=_innermost(value)) if value.ndim in (4, 5) else value
        for name, value in moved.items()
    }


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
