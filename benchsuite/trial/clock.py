"""The step clock: when each part of a step ended, on the host or on a CUDA device's timeline.

Marks are consecutive, so the parts of a step add up to it: each lasts from the mark before it, and the first from the
last mark of the step before.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol

import torch
from torch.cuda import nvtx

from benchsuite.host.processes import computing_threads
from benchsuite.inside.processes import scheduled_s
from benchsuite.inside.samples import Block


class Clock(Protocol):
    """What a block of steps is timed with."""

    def start(self) -> None:
        """Begin a block: the next step starts now."""

    def mark(self, part: str) -> None:
        """Note the end of a part of the current step."""

    def stop(self) -> Block:
        """End the block, waiting for the device, and return it with the times of its steps."""


def run_queue_s() -> float | None:
    """Seconds that this thread has waited for a core; None where that is not kept."""
    times = scheduled_s("thread-self")
    return None if times is None else times[1]


def _parts(names: list[str], seconds: list[float]) -> dict[str, list[float]]:
    """Seconds of each part in each step, from those between consecutive marks.

    A step begins with the part that the first one began with. A part marked several times in a step counts in all, one
    that is not marked is 0 in that step.
    """
    steps: list[dict[str, float]] = []
    for name, duration in zip(names, seconds, strict=True):
        if name == names[0]:
            steps.append({})
        steps[-1][name] = steps[-1].get(name, 0.0) + duration
    return {name: [step.get(name, 0.0) for step in steps] for name in dict.fromkeys(names)}


@dataclass
class HostClock:
    """Marks by time.perf_counter: for devices that compute synchronously."""

    computes: ClassVar[bool] = True
    """Whether this process computes the steps, in several threads perhaps."""
    _marks: list[tuple[str, float]] = field(default_factory=list)
    _start: float = 0.0
    _queued: float | None = None
    _threads: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        self._marks = []
        self._threads = _threads_waited_s(self._threads)
        self._queued = run_queue_s()
        self._start = time.perf_counter()

    def mark(self, part: str) -> None:
        self._marks.append((part, time.perf_counter()))

    def stop(self) -> Block:
        ends = [self._start, *(end for _, end in self._marks)]
        seconds = [end - start for start, end in pairwise(ends)]
        parts = _parts([name for name, _ in self._marks], seconds)
        return Block("plain", self._start, ends[-1], parts, _waited(self._queued), threads_queue_s=self._longest_s())

    def _longest_s(self) -> float | None:
        """What the thread that computes beside this one and waited longest has waited for a core in this block.

        They are looked for when a block has ended, those that a first step has started, too: it takes a while.
        """
        if not self.computes or torch.get_num_threads() == 1:
            return None
        before, self._threads = self._threads, _threads_waited_s(computing_threads())
        return max((now_s - before.get(number, 0.0) for number, now_s in self._threads.items()), default=None)


@dataclass
class CudaClock:
    """Marks by CUDA events on the current stream, read when the block has ended.

    An event recorded after a host-side wait completes on the device no earlier than the wait ended, so the interval
    before it is the part of the wait that the device saw: exposed time, not time hidden behind queued work.
    """

    copied: Callable[[], None] | None = None
    """Told when a step has queued all copies of its batch to the device."""
    _events: list[tuple[str, torch.cuda.Event]] = field(default_factory=list)
    _first: torch.cuda.Event | None = None
    _start: float = 0.0
    _queued: float | None = None

    def start(self) -> None:
        self._events = []
        torch.cuda.synchronize()
        self._queued = run_queue_s()
        self._start = time.perf_counter()
        self._first = _recorded_event()

    def mark(self, part: str) -> None:
        self._events.append((part, _recorded_event()))
        if part == "h2d" and self.copied is not None:
            self.copied()

    def stop(self) -> Block:
        torch.cuda.synchronize()
        end = time.perf_counter()
        assert self._first is not None
        # Event by event: a float32 of milliseconds since the block's start would lose microseconds after a minute.
        events = [self._first, *(event for _, event in self._events)]
        seconds = [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
        parts = _parts([name for name, _ in self._events], seconds)
        return Block("plain", self._start, end, parts, _waited(self._queued))


def _threads_waited_s(threads: Iterable[int]) -> dict[int, float]:
    """Seconds that each of these threads of this process has waited for a core, by its number."""
    times = {number: scheduled_s(f"self/task/{number}") for number in threads}
    return {number: found[1] for number, found in times.items() if found is not None}


_push: Callable[[str], object] = nvtx.range_push
_pop: Callable[[], object] = nvtx.range_pop


@dataclass
class NvtxClock:
    """Another clock, whose steps and parts are NVTX ranges too, for Nsight Systems.

    A part has its name only when it ends, and a range when it begins: each range takes the name that the part at its
    place had in the step before.
    """

    clock: Clock
    _names: list[str] = field(default_factory=list)
    """Names of the parts of the last whole step."""
    _seen: list[str] = field(default_factory=list)
    """Names of the parts of this step."""

    def start(self) -> None:
        self.clock.start()
        self._seen = []
        _push("step")
        _push(self._name())

    def mark(self, part: str) -> None:
        self.clock.mark(part)
        _pop()
        if not self._names and part in self._seen[:1]:  # the first step has ended a part ago
            self._next_step()
        self._seen.append(part)
        if len(self._seen) == len(self._names):
            self._next_step()
        _push(self._name())

    def stop(self) -> Block:
        _pop()
        _pop()
        return self.clock.stop()

    def _next_step(self) -> None:
        self._names, self._seen = self._seen, []
        _pop()
        _push("step")

    def _name(self) -> str:
        return self._names[len(self._seen)] if len(self._seen) < len(self._names) else "part"


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def on_device_s(call: Callable[[], object], calls: int) -> float:
    """Seconds of so many calls on the current CUDA stream, by events, which are waited for."""
    first = _recorded_event()
    for _ in range(calls):
        call()
    last = _recorded_event()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _waited(before: float | None) -> float | None:
    after = run_queue_s()
    return after - before if before is not None and after is not None else None


def clock_for(device: torch.device, copied: Callable[[], None] | None = None, ranges: bool = False) -> Clock:
    """The clock of a device, which tells `copied` when a step's copies to a CUDA device are queued.

    With `ranges` its steps are NVTX ranges.
    """
    clock: Clock = CudaClock(copied) if device.type == "cuda" else HostClock()
    return NvtxClock(clock) if ranges else clock
