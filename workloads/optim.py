"""Optimizers by name, learning rates that grow with the batch and their warm-up, and how a step ends with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchsuite.workloads.precision import Scaler
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Workload

REFERENCE_BATCH = 256
"""Samples for which a workload's learning rate stands (Goyal et al., "Accurate, large minibatch SGD", 2017)."""
OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "momentum": lambda parameters, lr, **options: SGD(parameters, lr, momentum=0.9, **options),
    "adam": Adam,
    "adamw": AdamW,
    "adafactor": Adafactor,
}


def make(workload: Workload, compute: ComputeSpec, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer asked for, at the workload's learning rate; by default that of the workload's reference."""
    if compute.optimizer is None:
        made = workload.optimizer(parameters)
    else:
        made = OPTIMIZERS[compute.optimizer](parameters, lr=workload.learning_rate)
    for group in made.param_groups:
        if compute.fused:
            group |= {"fused": True, "foreach": False}
        elif len({type(parameter.data) for parameter in group["params"]}) > 1:
            group["foreach"] = False  # split parameters beside whole ones, which no operation takes together
    return made


def schedule(optimizer: Optimizer, compute: ComputeSpec, global_batch: int) -> LambdaLR | None:
    """Linear scaling of the learning rate with the global batch and its warm-up; None where neither is asked for."""
    if compute.lr_scaling == "none" and not compute.lr_warmup_steps:
        return None
    scale = global_batch / REFERENCE_BATCH if compute.lr_scaling == "linear" else 1.0
    steps = compute.lr_warmup_steps

    def factor(step: int) -> float:
        return scale * min(1.0, (step + 1) / steps) if steps else scale

    return LambdaLR(optimizer, factor)


@dataclass(frozen=True)
class Update:
    """How a step of training ends, whatever the mode."""

    optimizer: Optimizer
    scaler: Scaler
    rates: LambdaLR | None

    def __call__(self) -> None:
        """Change the weights by their gradients, which are then gone, and go on to the next learning rate."""
        self.scaler.step(self.optimizer)
        self.optimizer.zero_grad()
        if self.rates is not None:
            self.rates.step()


def update_of(optimizer: Optimizer, compute: ComputeSpec, global_batch: int, device: torch.device) -> Update:
    """The end of each step, as it was asked for."""
    return Update(optimizer, Scaler(compute.precision, device), schedule(optimizer, compute, global_batch))
