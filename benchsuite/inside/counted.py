"""What the kernel counted while counted steps ran: of this process, of those below it, and of the whole node."""

import os
import socket
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from .pressure import group_cpus, pressure
from .processes import busy_and_idle_s, children, processes_io, swapped_in_bytes, tree_cpu_s
from .readers import LoadTimes
from .samples import UsedCores


@dataclass
class Counted:
    """What the kernel counted while counted steps ran; None once it could not be read."""

    wall_s: float = 0.0
    run_queue_s: float | None = 0.0
    read_call_bytes: int | None = 0
    storage_bytes: int | None = 0
    everyone_cpu_s: float = 0.0
    """CPU seconds of all processes on the cores that this one may use."""
    own_cpu_s: float = 0.0
    """CPU seconds of this process and all below it."""
    below_cpu_s: float = 0.0
    """CPU seconds of the processes below it."""
    memory_s: float | None = 0.0
    """Seconds in which some process waited for memory."""
    quota_periods: int | None = 0
    throttled_periods: int | None = 0
    """Periods of a quota on cores, and those in which it was used up."""
    idle_s: float = 0.0
    """Seconds that cores were idle which its control group may use."""
    swapped_in_bytes: int | None = 0

    @property
    def throttled_fraction(self) -> float | None:
        """Share of a quota's periods in which it was used up; None without a quota."""
        return (self.throttled_periods or 0) / self.quota_periods if self.quota_periods else None

    @property
    def memory_stall_fraction(self) -> float | None:
        """Share of the time in which some process waited for memory; None where that is not kept."""
        return self.memory_s / self.wall_s if self.memory_s is not None and self.wall_s else None

    def add(self, before: "Counted", after: "Counted") -> None:
        """Add what lies between two readings."""
        for name, total in vars(self).items():
            first, last = getattr(before, name), getattr(after, name)
            setattr(self, name, None if None in (total, first, last) else total + last - first)


_cpus_of_group = cache(group_cpus)
"""They hardly change, and to look for them takes as long as all other counters."""


def counters(loads: LoadTimes, began_s: float | None = None) -> Counted:
    """The counters at the beginning of a window, at `began_s`, or at its end: all are read within the window."""
    me = os.getpid()
    below = children(me)
    # What children have read is their parent's when they are reaped: the sum does not jump.
    io, own_s = processes_io([me, *(pid for pid in below if os.path.exists(f"/proc/{pid}"))]), tree_cpu_s(below)
    read, stored = (None, None) if io is None else (io.read_bytes, io.storage_bytes)
    below_s, waited_s, held_back = own_s - time.process_time(), loads.waited_s(), pressure()
    everyone_s, idle_s = busy_and_idle_s(_cpus_of_group())
    now_s = time.perf_counter() if began_s is None else began_s
    return Counted(
        now_s,
        waited_s,
        read,
        stored,
        everyone_s,
        own_s,
        below_s,
        held_back.memory_s,
        held_back.quota_periods,
        held_back.throttled_periods,
        idle_s,
        swapped_in_bytes(),
    )


def used_cores(counted: Counted) -> UsedCores:
    """Who kept the cores busy meanwhile."""
    torch: Any = sys.modules.get("torch")
    return UsedCores(
        socket.gethostname(),
        tuple(sorted(os.sched_getaffinity(0))),
        counted.wall_s,
        counted.everyone_cpu_s,
        counted.own_cpu_s,
        counted.throttled_fraction,
        counted.idle_s / counted.wall_s if counted.wall_s else None,
        len(group_cpus() or ()) or os.cpu_count(),
        counted.memory_stall_fraction,
        counted.swapped_in_bytes,
        torch.get_num_threads() if torch is not None else None,
    )
