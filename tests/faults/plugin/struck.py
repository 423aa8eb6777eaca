"""A third party's workload that is struck from outside: each variant at another moment, in rank 1 of 2."""

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor, nn

from benchsuite.inside.frames import frame_of
from benchsuite.inside.processes import children
from benchsuite.workloads.resnet50 import WORKLOAD as RESNET
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch

WARMUP_STEPS = 3
"""As the sweep has them."""
DATASET = "struck-data"
"""Below the current folder: what `removes_data` removes."""


FILLER = Path("/dev/shm/benchsuite-test-filler")


class Struck(nn.Module):
    """A model that counts its steps."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.model = RESNET.build(RESNET.variants["nano"])
        self.number, self.steps = number, 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def rank() -> int:
    return int(os.environ["RANK"])


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def once(condition: Callable[[], bool], strike: Callable[[], None]) -> None:
    """Strike from another thread, as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.0002)
        strike()

    threading.Thread(target=wait, daemon=True).start()


def is_reading() -> bool:
    """Whether this process's main thread is inside the loader."""
    frame = frame_of(threading.main_thread().ident or 0)
    while frame is not None:
        if "/storage/loaders/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def in_warmup(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS - 1:
        kill_me()


def in_loader(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS + 2:
        once(is_reading, kill_me)


def in_collective(step: int) -> None:
    """Rank 0 is late, so that rank 1 waits for it in the all-reduce."""
    if step != WARMUP_STEPS + 2:
        return
    if rank() == 0:
        time.sleep(1.0)
    else:
        began = time.monotonic()
        once(lambda: time.monotonic() > began + 0.6, kill_me)


def worker(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS + 2:
        os.kill(children(os.getpid())[0], signal.SIGKILL)


def eats(step: int) -> None:
    """Take memory, and touch it, until the kernel has had enough."""
    if rank() == 1 and step == WARMUP_STEPS + 2:
        held = []
        while True:
            held.append(b"\1" * 500_000_000)


def removes_data(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS + 2:
        shutil.rmtree(Path(DATASET))


def fills_shm(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS + 2:
        with suppress(OSError), FILLER.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                continue


def frees_shm(step: int) -> None:
    if rank() == 1 and step == WARMUP_STEPS + 2:
        FILLER.unlink()


def nothing(step: int) -> None: ...


FAULTS = (nothing, in_warmup, in_loader, in_collective, worker, eats, removes_data, fills_shm, frees_shm)


def build(variant: Variant) -> nn.Module:
    number = variant.model["fault"]
    assert isinstance(number, int)
    return Struck(number)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    inner = model.module if hasattr(model, "module") else model
    inner.steps += 1
    FAULTS[inner.number](inner.steps)
    return RESNET.loss(model, batch)


WORKLOAD = dataclasses.replace(
    RESNET,
    name="struck",
    variants={
        fault.__name__: dataclasses.replace(RESNET.variants["tiny"], model={"fault": number})
        for number, fault in enumerate(FAULTS)
    },
    build=build,
    loss=loss,
    blocks=None,
    pipeline=None,
)
