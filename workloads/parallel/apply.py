"""The recipe: spread a model over ranks, and give the trial one callable, `step(batch, clock) -> loss`.

A mode is a function `(model, device) -> Spread`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workloads import MODES, load
from workloads.precision import autocast
from workloads.spec import Precision
from workloads.workload import Batch, Workload

Mode = Callable[[nn.Module, torch.device], "Spread"]


class StepClock(Protocol):
    """Notes the end of each part of a step."""

    def mark(self, part: str) -> None: ...


@dataclass(frozen=True)
class Spread:
    """A model spread over ranks, and whether its backward pass ends with an exchange that can be told apart."""

    model: nn.Module
    exchanges: bool


@dataclass(frozen=True)
class Training:
    """What the trial runs: one step, and the full state gathered from all ranks."""

    step: Callable[[Batch, StepClock], Tensor]
    gather_state: Callable[[], dict[str, Tensor]]


def alone(model: nn.Module, device: torch.device) -> Spread:
    """One rank, nothing exchanged."""
    return Spread(model, exchanges=False)


def ddp(model: nn.Module, device: torch.device) -> Spread:
    """Replicas with averaged gradients (Li et al., "PyTorch distributed", 2020).

    Buffers are not broadcast: that would sit in the forward pass and be taken for computation.
    """
    ids = [device] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 prefers another name for it, which torch 2.11 does not know.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return Spread(DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False), exchanges=True)


def _mark_backward_end(loss: Tensor, clock: StepClock) -> None:
    """Note when the backward computation is done, before the engine waits for the exchange.

    Engine callbacks run in the order of queueing; this one is queued when backward starts, DDP's wait later.
    """

    def queue(_gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: clock.mark("backward"))

    loss.register_hook(queue)  # type: ignore[no-untyped-call]


def prepare(workload: Workload, model: nn.Module, mode: str, precision: Precision, device: torch.device) -> Training:
    """Spread the model by `mode` and return its training step.

    The step moves the batch to the device, computes loss and gradients, updates, and marks the end of each part.
    """
    make_spread: Mode = load(MODES, mode)
    spread = make_spread(model, device)
    optimizer = workload.optimizer(spread.model.parameters())

    def step(batch: Batch, clock: StepClock) -> Tensor:
        moved = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        clock.mark("h2d")
        with autocast(precision, device):
            loss = workload.loss(spread.model, moved)
        clock.mark("forward")
        if spread.exchanges:
            _mark_backward_end(loss, clock)
        loss.backward()  # type: ignore[no-untyped-call]
        clock.mark("exchange" if spread.exchanges else "backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.mark("update")
        return loss.detach()

    return Training(step, lambda: dict(model.state_dict()))
