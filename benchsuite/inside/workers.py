"""Looks at a DataLoader's worker from inside it, where Python's frames tell what it computes."""

import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing import util
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from .files import read_plain, write_new
from .looks import WRITES_APART_S, Looker, Reading, Tally
from .processes import born_s
from .readers import thread_clock
from .samples import Line, Looks

FIRST_BATCHES = 20
"""Of a worker, by which is told what its first one takes longer."""


@dataclass(frozen=True)
class TimedCollate:
    """A DataLoader's `collate_fn`, which notes what of a core it takes: looks by a thread of Python come when collating
    hands Python's lock on, and so too often within it."""

    of_user: Callable[[Any], Any]
    spent_s: list[float] = field(default_factory=lambda: [0.0])
    """CPU seconds of this loader's own process."""
    of_this_process: ClassVar[list[float]] = [0.0]
    """The same of any loader: a worker has one."""
    ended_s: ClassVar[list[float]] = []
    """When this process had its first batches."""
    num_batches: ClassVar[list[int]] = [0]
    """How many it has had."""

    def __call__(self, samples: Any) -> Any:
        began_s = time.thread_time()
        try:
            return self.of_user(samples)
        finally:
            seconds = time.thread_time() - began_s
            self.spent_s[0] += seconds
            self.of_this_process[0] += seconds
            self.num_batches[0] += 1
            if len(self.ended_s) < FIRST_BATCHES:
                self.ended_s.append(time.perf_counter())


@dataclass(frozen=True)
class LookInside:
    """What a worker calls when it starts (`worker_init_fn`): it begins to look, and then calls what the user gave."""

    folder: str
    writes_apart_s: float = WRITES_APART_S
    of_user: Callable[[int], object] | None = None

    def __call__(self, worker: int) -> None:
        born_before_s = time.clock_gettime(time.CLOCK_BOOTTIME) - born_s(os.getpid())
        path, clock = Path(self.folder) / f"{os.getpid()}.json", thread_clock(threading.get_native_id())
        TimedCollate.of_this_process[0], began_s, here_s = 0.0, time.thread_time(), time.perf_counter()
        TimedCollate.ended_s.clear()
        TimedCollate.num_batches[0] = 0

        def write(tally: Tally) -> None:
            start_s = [born_before_s + opening_s([here_s, *TimedCollate.ended_s])]
            computed = (TimedCollate.of_this_process[0], time.clock_gettime(clock) - began_s)
            with suppress(OSError):  # a thread has ended; or the folder is gone: nobody wants to know any more
                handed_over = handing_over_s(), TimedCollate.num_batches[0]
                looks = tally.looks(start_s=start_s, collate_and_cpu_s=computed, handed_over=handed_over)
                write_new(path, json.dumps(asdict(looks)))

        looker = Looker(lambda: ("readers", 0), Reading, write, self.writes_apart_s)
        looker.start()
        util.Finalize(None, write, (looker.tally,), exitpriority=100)
        if self.of_user is not None:
            self.of_user(worker)


def handing_over_s() -> float:
    """CPU seconds of the threads by which this process's queues hand on what was put into them."""
    handing = [thread.native_id for thread in threading.enumerate() if thread.name == "QueueFeederThread"]
    return sum(time.clock_gettime(thread_clock(thread)) for thread in handing if thread is not None)


def opening_s(ended_s: Sequence[float]) -> float:
    """What the first batch of a worker takes longer than one usually does, by when each ended: it opens its data."""
    taken_s = [later - earlier for earlier, later in pairwise(ended_s)]
    return max(0.0, taken_s[0] - median(taken_s[1:])) if len(taken_s) > 1 else 0.0


class Inside:
    """The folder in which workers leave what they have seen of themselves."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder`: one that is there; default: a new one."""
        self.folder = folder or tempfile.mkdtemp(prefix="benchsuite-looks-")

    def told(self, workers: Iterable[int]) -> Looks | None:
        """What these workers have left, by their process ids, added up; None where none has."""
        found = []
        for path in (Path(self.folder) / f"{worker}.json" for worker in workers):
            with suppress(OSError, ValueError, TypeError):  # a worker may be writing it
                found.append(_read(json.loads(read_plain(path))))
        return added(found) if found else None

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(told: dict[str, Any]) -> Looks:
    """What a worker has written."""
    return Looks(**{**told, "lines": [Line(**line) for line in told["lines"]]})


def added(found: Sequence[Looks]) -> Looks:
    """Looks of several processes as one."""
    lines: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line in (line for looks in found for line in looks.lines):
        key = (line.phase, line.word, line.line)
        looks, steps = lines.get(key, (0, 0))
        lines[key] = (looks + line.looks, steps + line.steps)
    return Looks(
        {},
        dict(sum((Counter(each.readers) for each in found), Counter[str]())),
        {},
        dict(sum((Counter(each.files) for each in found), Counter[str]())),
        [Line(*key, *seen) for key, seen in lines.items()],
        [seconds for each in found for seconds in each.start_s],
        (sum(each.collate_and_cpu_s[0] for each in found), sum(each.collate_and_cpu_s[1] for each in found)),
        (sum(each.handed_over[0] for each in found), sum(each.handed_over[1] for each in found)),
    )
