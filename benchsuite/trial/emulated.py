"""An accelerator that is not here: its steps take a known time, everything else about a trial is real.

The device is a timeline, as a real one is to its host. Its step begins when the one before has ended and every rank
has its batch, and it lasts the known time; meanwhile this process asks the loader for the next batch and sleeps. How
late it wakes is lost only where the device would have had to wait for it. Without readers beside the steps, batches are
read in line: between two steps, not during one. Ranks tell each other when their batches came while they wait, so that
meeting costs nothing: the published times hold the exchange already.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from benchsuite.storage.loaders import Batch
from benchsuite.trial.clock import HostClock

MAX_FORGIVEN_S = 0.001
"""Reading in line begins late by what sleep() is late; more than this is the client's, and lost."""
MEETING_S = 0.001
"""Ranks that read in line agree on a moment so far ahead: agreeing takes time, which would be read as loading."""
PR_SET_TIMERSLACK = 29


def wait_until(moment_s: float) -> float:
    """Sleep until a moment of time.perf_counter(); when it woke."""
    time.sleep(max(0.0, moment_s - time.perf_counter()))
    return time.perf_counter()


@dataclass
class EmulatedDevice(HostClock):
    """The clock of a trial's steps and the steps themselves: load, exchange (waiting for other ranks), forward."""

    computes: ClassVar[bool] = False
    step_s: float = 0.0
    feed: Callable[[], Batch] | None = None
    in_line: bool = False
    """Whether batches are read between steps."""
    late_s: list[float] = field(default_factory=list)
    """How late this process woke in each step of the block."""
    _held: Batch | None = None
    _arrived_s: float = 0.0
    _end_s: float = 0.0
    _awake_s: float = 0.0
    _shared_clock: bool = True

    def __post_init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
        if dist.is_initialized():
            hosts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(hosts, Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
            self._shared_clock = len(set(hosts)) == 1

    def start(self) -> None:
        """Begin a block, all ranks at one time.

        A device that holds a batch goes on where it was: it would not have noticed that its host looked at counters. A
        longer pause is left out, and what the device has waited for that batch belongs to the block all the same.
        """
        self.late_s = []
        super().start()
        self._start = self._last_of_ranks(self._start)
        if self.in_line and dist.is_initialized():
            self._start += MEETING_S
            self._awake_s = wait_until(self._start)
        if self._held is None:
            return
        paused_s = self._start - self._last_of_ranks(max(self._end_s, self._arrived_s))
        if paused_s < self.step_s / 2:
            self._start = self._end_s
        else:
            waited_s = max(0.0, self._arrived_s - self._end_s)
            self._arrived_s = self._start
            self._start -= waited_s

    def next_batch(self) -> Batch:
        """The batch that was asked for during the last step, or now."""
        batch = self._held if self._held is not None else self._ask()
        self._held = None
        return batch

    def _ask(self) -> Batch:
        assert self.feed is not None
        batch = self.feed()
        self._arrived_s = time.perf_counter()
        return batch

    def step(self, _batch: Batch, _clock: object = None) -> None:
        """One step: wait for the other ranks' batches, then for the known time."""
        before_s = self._marks[-2][1] if len(self._marks) > 1 else self._start
        forgiven_s = min(max(0.0, self._awake_s - before_s), MAX_FORGIVEN_S) if self.in_line else 0.0
        arrived_s = max(before_s, self._arrived_s - forgiven_s)
        self._marks[-1] = ("load", arrived_s)
        if dist.is_initialized():
            arrived_s = self._last_of_ranks(arrived_s)
            self._marks.append(("communication", arrived_s))
        self._end_s = arrived_s + self.step_s
        self._marks.append(("forward", self._end_s))
        if not self.in_line:
            self._held = self._ask()
        self._awake_s = wait_until(self._end_s)
        self.late_s.append(self._awake_s - max(self._end_s, self._arrived_s))

    def _last_of_ranks(self, moment_s: float) -> float:
        """The latest of all ranks' moments; on several hosts, whose clocks differ, when this rank has heard of all."""
        if not dist.is_initialized():
            return moment_s
        latest = torch.tensor([moment_s if self._shared_clock else 0.0], dtype=torch.float64)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        return latest.item() if self._shared_clock else max(moment_s, time.perf_counter())
