"""A model on a real device whose step takes a known time: one weight, and a wait in its forward pass.

A trial of it goes the way of every training: forward, backward, communication, optimizer. Variants are named after
the wait.
"""

import ctypes
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchsuite.workloads.gpt_neox import WORKLOAD as NEOX
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch

PR_SET_TIMERSLACK = 29
WAITS_MS = (3.5, 10.0, 20.0, 30.0, 40.0)
VARIANTS = {f"{ms:g}ms": Variant({"step_us": round(ms * 1e3)}, NEOX.variants["nano"].sample) for ms in WAITS_MS}


class Waits(nn.Module):
    """One weight, and how long a forward pass takes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
        self.weight, self.seconds = nn.Parameter(torch.zeros(1)), seconds

    def forward(self, _batch: Batch) -> Tensor:
        """Wait; the gradient of what is returned is 1."""
        time.sleep(self.seconds)
        return self.weight.sum()


def build(variant: Variant) -> nn.Module:
    """The model of a variant."""
    return Waits(int(variant.model["step_us"]) / 1e6)  # type: ignore[arg-type]


WORKLOAD = replace(
    NEOX,
    name="waits",
    variants=VARIANTS,
    build=build,
    loss=lambda model, batch: model(batch),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    blocks=None,
    tensor_parallel=None,
    pipeline=None,
    experts=None,
)
