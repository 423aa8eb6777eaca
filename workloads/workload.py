"""Workload: everything a trial needs to know of a model; adding one is one file with one such constant."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.spec import Variant

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model to train.

    `kind` names the sample kind it takes; `build(variant)` makes the model on the CPU; `loss(model, batch)` is a
    scalar; `synthetic(variant, batch_size, device)` makes a batch on the device, shaped like the loader's;
    `optimizer(parameters)` is the one its reference trains with.
    """

    name: str
    kind: str
    variants: Mapping[str, Variant]
    build: Callable[[Variant], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    synthetic: Callable[[Variant, int, torch.device], Batch]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
