"""What the worker processes of a training loop do, from the kernel's counters, read from outside."""

import os
import random
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import scheduled_s, user_and_kernel_s
from .samples import SeenReaders

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Between two looks at the readers; short loops are looked at soon, long ones seldom."""
FIRST_LOADS = 200
FIRST_APART_S, LATER_APART_S = 0.02, 0.25
"""Loads of which the clocks are read begin on average at least so long after each other: the first ones, and later."""
SMOOTHED = 0.1
"""The weight of the last load in their mean distance."""


class LoadTimes:
    """What the loop's thread, and those beside it that may load for it, did while the loop waited for its loads.

    Of short steps some are taken for all, by chance: to read the clocks takes some 50 us where they are in no cache.
    Which ones must not depend on how long a load was, as loads that wait often take turns with such as do not; and each
    counts for as many as it was taken for. The clocks are read within the time that is taken, so no share exceeds it.
    """

    def __init__(self) -> None:
        self.seconds = self.own_s = self.fed_s = self.beside_s = 0.0
        """Seconds of all loads, by those that were taken; of them those in which this thread ran or waited for a core,
        in which threads ran that load for it, and in which others did, of libraries mostly, of which nobody can say
        whether they load or spin."""
        self._strangers: dict[int, float] = {}
        """Clocks of threads that do not load, and what each showed last."""
        self._feeders: dict[int, float] = {}
        self._file: int | None = None
        self._waited_s = 0.0
        self._began = (0.0, 0.0, 0.0, 0.0)
        self.body_s = self.body_own_s = self.body_process_s = 0.0
        """Seconds between a load and the next; of them those in which this thread ran or waited for a core, and what
        all threads of the process ran."""
        self._ended: tuple[float, float, float] | None = None
        self._is_taken, self._apart_s = False, FIRST_APART_S
        """Whether this load is taken, and how long after the one before loads begin."""
        self._taken, self._stands_for = 0, 1.0
        """Loads that were taken, and for how many the last one counts."""
        self._begun_s: float | None = None
        """When the last one began; the first is taken."""
        self._chance = random.Random()  # the training's own numbers must come as they would

    def open(self, strangers: Iterable[int], feeders: Iterable[int] = ()) -> None:
        """Begin a pass, in the thread that loads."""
        self.close()
        self._ended = None
        self.tell_apart(strangers, feeders)
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def close(self) -> None:
        """Close the kernel's file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def tell_apart(self, strangers: Iterable[int], feeders: Iterable[int]) -> None:
        """Threads of Python beside it that do not load, and those that do; between loads."""
        self._strangers = {thread_clock(thread): 0.0 for thread in strangers}
        self._feeders = {thread_clock(thread): 0.0 for thread in feeders}

    def pause(self) -> None:
        """What comes before the next load is no body of a step."""
        self._ended = None

    def begin(self) -> None:
        """Note that a load begins."""
        began_s = time.perf_counter()
        if self._begun_s is not None:
            self._apart_s += SMOOTHED * (began_s - self._begun_s - self._apart_s)
        self._begun_s = began_s
        limit_s = FIRST_APART_S if self._taken < FIRST_LOADS else LATER_APART_S
        self._is_taken = self._chance.random() * limit_s < self._apart_s
        if not self._is_taken and self._ended is None:
            return
        process_s, own_s, fed_s, beside_s = self._used()
        self._began = began_s, own_s, fed_s, beside_s
        if self._ended is not None:
            ended_s, ended_own_s, ended_process_s = self._ended
            self.body_s += self._stands_for * (began_s - ended_s)
            self.body_own_s += self._stands_for * (own_s - ended_own_s)
            self.body_process_s += self._stands_for * (process_s - ended_process_s)
            self._ended = None
        self._stands_for = max(1.0, limit_s / self._apart_s)

    def skip(self) -> None:
        """Note that a step has no load."""
        self.begin()
        self.end()

    def end(self) -> None:
        """Note that the load has ended; called in the thread that called `begin`."""
        if not self._is_taken:
            return
        process_s, own_s, fed_s, beside_s = self._used()
        began_s, began_own_s, began_fed_s, began_beside_s = self._began
        ended_s = time.perf_counter()
        self.seconds += self._stands_for * (ended_s - began_s)
        self.own_s += self._stands_for * (own_s - began_own_s)
        self.fed_s += self._stands_for * (fed_s - began_fed_s)
        self.beside_s += self._stands_for * (beside_s - began_beside_s)
        self._taken += 1
        self._ended = ended_s, own_s, process_s

    def waited_s(self) -> float | None:
        """Seconds that this thread has waited for a core; None where that is not kept."""
        if self._file is None:
            return None
        with suppress(ProcessLookupError):  # the thread that began the pass has ended: another goes on with it
            self._waited_s = int(os.pread(self._file, 99, 0).split()[1]) / 1e9
        return self._waited_s

    def _used(self) -> tuple[float, float, float, float]:
        """Seconds that the process ran, this thread ran or waited for a core, feeders ran, and other threads did."""
        ran_s = time.thread_time()
        process_s = time.process_time()
        fed_s = _read(self._feeders) if self._feeders else 0.0
        strange_s = _read(self._strangers) if self._strangers else 0.0
        return process_s, ran_s + (self.waited_s() or 0.0), fed_s, process_s - ran_s - fed_s - strange_s


def _read(clocks: dict[int, float]) -> float:
    """The sum of threads' clocks; of those that have ended what they showed last: it stays the process's."""
    for clock in clocks:
        with suppress(OSError):
            clocks[clock] = time.clock_gettime(clock)
    return sum(clocks.values())


def thread_clock(thread: int) -> int:
    """The kernel's clock of a thread's CPU time (`man 2 clock_getres`), by an id that stays safe when it has ended."""
    return ~thread << 3 | 6


@dataclass
class ReaderTimes:
    """How busy readers are, processes or threads: seconds on a core or waiting for one, over the seconds looked at.

    A reader that is not busy waits: for reads, or because the queue is full.
    """

    tasks: list[int | str] = field(default_factory=list)
    """Processes by their number, threads of this one as `self/task/NUMBER`."""
    num_readers: int = 0
    cpus: frozenset[int] = frozenset()
    """The cores that they may use."""
    _last: dict[int | str, tuple[float, float, float, float, float]] = field(default_factory=dict)
    _busy_s: float = 0.0
    _user_s: float = 0.0
    _kernel_s: float = 0.0
    """CPU seconds of all threads of the readers, in their own code and in the kernel."""
    _queued_s: float = 0.0
    _seen_s: float = 0.0
    _next_s: float = 0.0
    _pause_s: float = FIRST_PAUSE_S

    def watch(self, processes: Collection[int], threads: Collection[int] = ()) -> None:
        """Take these for the readers from now on; those known already go on."""
        self.tasks = [*sorted(processes), *(f"self/task/{thread}" for thread in sorted(threads))]
        self.num_readers = max(self.num_readers, len(self.tasks))
        if self._last.keys() - {*self.tasks} or {*self.tasks} - self._last.keys():  # other readers than before
            self._last = {task: last for task, last in self._last.items() if task in self.tasks}
            self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0

    def due(self, now_s: float) -> bool:
        """Whether it is time to look at the readers again."""
        return now_s >= self._next_s

    def look(self, counts: bool = True) -> None:
        """Add what the readers did since the last look; or leave that out, and begin anew here."""
        for task in self.tasks:
            began_s, times, now_s = time.perf_counter(), scheduled_s(task), time.perf_counter()
            cpu = user_and_kernel_s(task)
            if times is not None and cpu is not None:
                found = (sum(times), times[1], *cpu)
                seen_s, *before = self._last.get(task, (began_s, *found))
                if counts:
                    busy, queued, user, kernel = (now - then for now, then in zip(found, before, strict=True))
                    self._busy_s, self._queued_s = self._busy_s + busy, self._queued_s + queued
                    self._user_s, self._kernel_s = self._user_s + user, self._kernel_s + kernel
                    self._seen_s += now_s - seen_s
                self._last[task] = began_s, *found  # what it does meanwhile is within the time that is taken
                with suppress(OSError):
                    self.cpus |= os.sched_getaffinity(task if isinstance(task, int) else int(Path(task).name))
        self._next_s = time.perf_counter() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if counts else FIRST_PAUSE_S

    def kernel_fraction(self) -> float | None:
        """Share of the readers' CPU time that the kernel took; None where they took hardly any."""
        cpu_s = self._user_s + self._kernel_s
        return self._kernel_s / cpu_s if cpu_s else None

    def busy_fraction(self) -> float | None:
        """Share of the time looked at that the readers were busy; None where nothing was seen."""
        return self._busy_s / self._seen_s if self._seen_s else None

    def cores(self) -> float | None:
        """Cores that all threads of a reader keep busy or wait for, on average; None where nothing was seen."""
        return (self._user_s + self._kernel_s + self._queued_s) / self._seen_s if self._seen_s else None

    def queued_fraction(self) -> float | None:
        """Share of the time looked at in which the readers waited for a core; None where nothing was seen."""
        return self._queued_s / self._seen_s if self._seen_s else None


def seen_readers(loads: LoadTimes, readers: ReaderTimes, below_cores: float = 0.0, **facts: Any) -> SeenReaders:
    """What the readers of a loop did, with what else is known of them.

    `below_cores`: cores that processes below this one keep busy, where it is not known which of them read.
    """
    own, fed, beside = (
        part / loads.seconds if loads.seconds else None for part in (loads.own_s, loads.fed_s, loads.beside_s)
    )
    return SeenReaders(
        readers.num_readers,
        readers.busy_fraction() if readers.num_readers else own,
        own,
        fed,
        None if beside is None else beside + below_cores,
        body_busy_fraction=loads.body_own_s / loads.body_s if loads.body_s else None,
        body_cores=loads.body_process_s / loads.body_s if loads.body_s else None,
        queued_fraction=readers.queued_fraction(),
        cpus=tuple(sorted(readers.cpus)),
        cores=readers.cores() if readers.num_readers else None,
        kernel_fraction=readers.kernel_fraction(),
        **facts,
    )
