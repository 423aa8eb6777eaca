"""The process table at one moment: whose processes are ours, and who else keeps cores busy between two readings."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchsuite.inside.processes import TICKS_PER_S

PROC = Path("/proc")
KERNEL_THREADS = 2
"""The process whose children are threads of the kernel."""


@dataclass(frozen=True)
class Process:
    """One process, by what /proc/PID/stat says of it."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    cpu_s: float
    """CPU seconds of all its threads."""
    born: int
    """When it started, in ticks since the host did: with `pid` it tells a process from all others."""

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.born

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def parsed(text: str) -> Process:
    """A process from its line; its name may hold spaces and brackets."""
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    state, parent, _, session, *numbers = rest.split()
    ticks = int(numbers[7]) + int(numbers[8])
    return Process(int(pid), name, state, int(parent), int(session), ticks / TICKS_PER_S, int(numbers[15]))


def computing_threads() -> list[int]:
    """The threads that compute for this process's main one, by their numbers, and others that libraries start alike.

    OpenMP's threads bear the main thread's name, and Python knows nothing of them. Threads that rest wait for no core.
    """
    tasks, known = PROC / "self" / "task", {thread.native_id for thread in threading.enumerate()}
    found: list[int] = []
    with suppress(OSError):
        name = (PROC / "self" / "comm").read_bytes()
        for number in {int(task.name) for task in tasks.iterdir()} - known:
            with suppress(OSError):  # it has ended meanwhile
                found += [number] if (tasks / str(number) / "comm").read_bytes() == name else []
    return found


@dataclass(frozen=True)
class Busy:
    """A process of someone else, and how many cores it kept busy."""

    process: Process
    cores: float

    def __str__(self) -> str:
        return f"{self.process} keeps {self.cores:.1f} cores busy"


@dataclass(frozen=True)
class Table:
    """Every process that can be seen, kernel threads and the ended left out."""

    processes: dict[int, Process]
    at_s: float
    """When it was taken, by time.monotonic()."""

    @classmethod
    def now(cls, root: Path = PROC) -> Self:
        """Read it: about 20 us a process."""
        found: dict[int, Process] = {}
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.name.isdigit()]
        for name in names:
            with suppress(OSError, ValueError):  # it has ended meanwhile
                process = parsed((root / name / "stat").read_text(errors="replace"))
                if process.state not in "ZX" and KERNEL_THREADS not in (process.pid, process.parent):
                    found[process.pid] = process
        return cls(found, time.monotonic())

    def ours(self, root: int) -> Iterator[Process]:
        """A process and all below it."""
        children: dict[int, list[Process]] = {}
        for process in self.processes.values():
            children.setdefault(process.parent, []).append(process)
        waiting = [self.processes[root]] if root in self.processes else []
        while waiting:
            process = waiting.pop()
            yield process
            waiting += children.get(process.pid, [])

    def busy_since(self, earlier: "Table", root: int, least_cores: float) -> list[Busy]:
        """Who else kept at least so many of the cores that this process may use busy since then, the busiest first."""
        ours = {process.pid for process in self.ours(root)}
        passed_s = max(self.at_s - earlier.at_s, 1e-9)
        found: list[Busy] = []
        for process in self.processes.values():
            before = earlier.processes.get(process.pid)
            known = before is not None and before.key == process.key
            cores = (process.cpu_s - (before.cpu_s if before is not None and known else 0.0)) / passed_s
            if process.pid not in ours and cores >= least_cores and _shares_cores(process.pid):
                found.append(Busy(process, cores))
        return sorted(found, key=lambda busy: -busy.cores)


def _shares_cores(pid: int) -> bool:
    """Whether a process may run on cores that this one may use; yes where that cannot be told."""
    try:
        return bool(os.sched_getaffinity(pid) & os.sched_getaffinity(0))
    except OSError:
        return True
