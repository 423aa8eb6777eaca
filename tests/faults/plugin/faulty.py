"""A third party's workload, found by its entry point: ResNet-50 whose variants go wrong, each in its own way."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchsuite.workloads.resnet50 import WORKLOAD as RESNET
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch

STEPS_BEFORE = 8
"""Steps that go well first, so that the fault strikes while measuring."""


class Faulty(nn.Module):
    """A model that counts its steps."""

    def __init__(self, fault: int) -> None:
        super().__init__()
        self.model = RESNET.build(RESNET.variants["nano"])
        self.fault, self.steps = fault, 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def raises() -> None:
    raise ArithmeticError("the model has had enough")


def exits() -> None:
    sys.stderr.write("leaving without a word of why\n")
    sys.stderr.flush()
    os._exit(7)


def hangs() -> None:
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(child, start_new_session=True)  # outside of the rank's process group
    time.sleep(600)


def allocates() -> None:
    torch.empty(1 << 50)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


FAULTS: tuple[Callable[[], None] | None, ...] = (None, raises, exits, hangs, allocates, is_killed, None)
NAMES = ("sound", "raises", "exits", "hangs", "allocates", "is_killed", "nan")


def build(variant: Variant) -> nn.Module:
    number = variant.model["fault"]
    assert isinstance(number, int)
    return Faulty(number)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    inner = model.module if hasattr(model, "module") else model
    inner.steps += 1
    value = RESNET.loss(model, batch)
    if inner.steps <= STEPS_BEFORE:
        return value
    fault = FAULTS[inner.fault]
    if fault is not None:
        fault()
    return value * float("nan") if NAMES[inner.fault] == "nan" else value


WORKLOAD = dataclasses.replace(
    RESNET,
    name="faulty",
    variants={name: Variant({"fault": number}, {"image_size": 64}, 1000) for number, name in enumerate(NAMES)},
    build=build,
    loss=loss,
    blocks=None,
    pipeline=None,
)
