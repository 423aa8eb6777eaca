"""Exposed communication: the time in which a rank does nothing but wait for others, marked where it happens.

Collectives run beside the computation; what costs time is waiting for them. So every wait is marked: its beginning ends
the part of the step that was under way, its end ends an `communication`. On a CUDA device the marks are events on the
stream that computes, where a wait is what that stream waits for another.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

from benchsuite.inside.collectives import wrap_waits
from benchsuite.workloads.parallel import context

OpType = torch._C._distributed_c10d.OpType  # type: ignore[attr-defined]
MESSAGES = {int(kind) for kind in (OpType.SEND, OpType.RECV, OpType.RECVANYSOURCE, OpType.COALESCED)}


class StepClock(Protocol):
    """Notes the end of each part of a step."""

    def mark(self, part: str) -> None: ...


class NoClock:
    """A clock for steps that nobody times."""

    def mark(self, part: str) -> None:
        """Note nothing."""


class Waits:
    """Marks waits in the clock of the step under way."""

    def __init__(self) -> None:
        self._clock: StepClock | None = None
        self._part = "forward"
        self._waiting = self._pipeline = False

    def begin(self, clock: StepClock, part: str, pipeline: bool = False) -> None:
        """Until the next call, waits interrupt this part of a step; in a pipeline those for messages are `bubble`."""
        self._clock, self._part, self._pipeline = clock, part, pipeline

    def part(self, name: str) -> None:
        """Say that from here on this part of the step is under way."""
        self._part = name

    def mark(self, part: str) -> None:
        """Note the end of a part, where a step is under way."""
        if self._clock is not None:
            self._clock.mark(part)

    def end(self) -> None:
        """Outside of steps nothing is marked."""
        self._clock = None

    def timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """A wait that is marked; one within another is part of it."""

        def waited(*arguments: Any, **options: Any) -> Any:
            clock = self._clock  # a wait of another thread may outlast the step
            if clock is None or self._waiting:
                return wait(*arguments, **options)
            self._waiting = True
            clock.mark(self._part)
            try:
                return wait(*arguments, **options)
            finally:
                clock.mark("bubble" if self._pipeline and _is_message(arguments[0]) else "communication")
                self._waiting = False

        return waited


def _is_message(waited_for: object) -> bool:
    """Whether a work is one rank's send or receive; NCCL knows a batch of them as coalesced."""
    return isinstance(waited_for, dist.Work) and waited_for._get_op_type() in MESSAGES  # type: ignore[attr-defined]


def mark_waits() -> Waits:
    """Begin to mark the waits of this process: of works, functional collectives, blocking collectives, and streams.

    There is no public hook for these; what is replaced is what all of torch's modes call.
    """
    waits = Waits()
    wrap_waits(waits.timed)
    _functional_collectives.wait_tensor = waits.timed(_functional_collectives.wait_tensor)
    context.wait_for = waits.timed(context.wait_for)  # messages, but of no pipeline
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream()
        stream = torch.cuda.Stream
        stream.wait_event = _on_streams(waits, stream.wait_event, lambda own: own == main)  # type: ignore[method-assign]
        stream.synchronize = _on_streams(waits, stream.synchronize, lambda own: own != main)  # type: ignore[method-assign]
    return waits


def _on_streams(
    waits: Waits, wait: Callable[..., Any], counts: Callable[[torch.cuda.Stream], bool]
) -> Callable[..., Any]:
    """A wait of or for a stream, marked where it `counts`.

    The stream that computes waits for others, or the host does before it gives that stream more to do. FSDP2 lets its
    own streams wait for each other as well.
    """
    timed = waits.timed(wait)

    def waited(stream: Any, *arguments: Any) -> Any:
        return (timed if counts(stream) else wait)(stream, *arguments)

    return waited
