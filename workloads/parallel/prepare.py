"""Spread a model over ranks as its layout asks, and return its training step."""

import torch
from torch import nn

from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel import tensor
from benchsuite.workloads.parallel.apply import Training, shape_blocks, spread_data, to_channels_last, training_of
from benchsuite.workloads.parallel.pipeline import prepare_pipeline
from benchsuite.workloads.parallel.spread import Recipe, ranks_of
from benchsuite.workloads.precision import convert
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Workload


def prepare(
    workload: Workload, model: nn.Module, layout: Layout, compute: ComputeSpec, device: torch.device, global_batch: int
) -> Training:
    """Spread the model over the process group's ranks and return its training step.

    The step moves the batch to the device, computes loss and gradients, updates, and marks the end of each part.
    """
    ranks = ranks_of(layout, device)
    recipe = Recipe(workload, ranks, compute)
    if layout.pp > 1:
        return prepare_pipeline(model, recipe, global_batch)
    model = convert(model, compute.precision)
    if compute.channels_last and layout.zero < 2:  # FSDP2 takes contiguous weights only
        model = to_channels_last(model)
    if layout.tp > 1:
        tensor.tp(model, recipe)
    shape_blocks(model, workload, compute)
    if layout.zero < 2:  # what is sharded goes to the device block by block
        model = model.to(device)
    spread = spread_data(model, recipe)
    return training_of(model, spread, recipe, global_batch)
