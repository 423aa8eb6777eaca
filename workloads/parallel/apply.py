"""The recipe: lay a model over ranks as its layout asks, and give the trial its step.

Read from top to bottom: precision, pipeline stages, tensor parallel, checkpointing and compilation, then the modes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from benchsuite.workloads.engine import train_of
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel import context, modes, pipeline
from benchsuite.workloads.parallel.account import note_kept
from benchsuite.workloads.parallel.first_weights import FirstWeights
from benchsuite.workloads.parallel.recipe import Parallelized, Recipe, ranks_of
from benchsuite.workloads.parallel.step import Training, channels_innermost, stepping_of
from benchsuite.workloads.precision import convert
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Workload

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


def prepare(
    workload: Workload,
    model: nn.Module,
    layout: Layout,
    compute: ComputeSpec,
    device: torch.device,
    global_batch: int,
    first: FirstWeights | None = None,
) -> Training:
    """Lay the model over the process group's ranks and return its training step.

    The step moves the batch to the device, computes loss and gradients, updates, and marks the end of each part.
    `first` gives weights to a model on the meta device, when it has been split.
    """
    recipe = Recipe(workload, ranks_of(layout, device), compute, first)
    model = convert(model, compute.precision)
    stages = pipeline.pp(model, recipe) if layout.pp > 1 else None
    if compute.channels_last and layout.zero < 2:  # FSDP2 takes contiguous weights only
        to_channels_last(model)
    if layout.tp > 1:
        modes.tp(model, recipe)
    if layout.cp > 1:
        context.cp(model, recipe)
    shape_blocks(model, workload, compute)
    if stages is not None:
        return pipeline.training_of(model, stages, recipe, global_batch)
    if layout.engine != "torch":
        recipe.place(model)
        training: Training = train_of(layout.engine)(model, recipe, global_batch)
        return training
    stepping = stepping_of(_laid_over_ranks(model, recipe), recipe, global_batch)
    return stepping.training(stepping.step, model, model)


def _laid_over_ranks(model: nn.Module, recipe: Recipe) -> Parallelized:
    """What the mode makes of the model, on the device."""
    layout = recipe.ranks.layout
    if layout.zero < 2:
        recipe.place(model, shares=modes.deal_experts(model, recipe) if layout.ep > 1 else {})
        return modes.parallelize(model, recipe)
    sharded = modes.parallelize(model, recipe)  # goes to the device block by block
    if recipe.first is not None:
        recipe.place(model)
    return sharded


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
        if compute.activation_checkpointing == "full":
            inner = torch.compile(block.forward, dynamic=False) if compute.compile else block.forward
            block.forward = _checkpointed(inner)
            continue
        if compute.activation_checkpointing == "selective":
            block.forward = _checkpointed(block.forward, partial(create_selective_checkpoint_contexts, _policy))
        if compute.compile:
            block.compile(dynamic=False)


def _checkpointed(
    forward: Callable[..., object], context_fn: Callable[[], Any] = noop_context_fn
) -> Callable[..., object]:
    """A function, not a partial of one: torch 2.13 leaves a module whose forward is a partial uncompiled, in silence.

    What is compiled lies within `full`: a CPU's attention that compiled code does again (torch 2.13) gives NaN.
    """
    return lambda *given, **named: checkpoint(forward, *given, use_reentrant=False, context_fn=context_fn, **named)


def _policy(context: object, operation: object, *_arguments: object, **_options: object) -> CheckpointPolicy:
    kept = operation in SAVED_BY_SELECTIVE
    if kept:
        note_kept(getattr(context, "op_output", None))  # autograd's hooks do not see it; torch 2.6 does not tell
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def to_channels_last(model: nn.Module) -> None:
    """Lay out weights of convolutions with channels innermost, of two dimensions or three, in place."""
    for parameter in model.parameters():
        if parameter.ndim in (4, 5):
            parameter.data = parameter.data.to(memory_format=channels_innermost(parameter))
