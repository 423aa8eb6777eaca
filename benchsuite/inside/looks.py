"""Looks at threads, some times a second: what the loop's thread is at, and what its readers are at while it waits.

A look costs some 20 us a thread. Looks come at times by chance, so that they fall into no step with the loop, and as
rarely as keeps them below `MOST_COST` of a core once there were a few.
"""

import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from .collectives import exchanges
from .frames import Buffers, frame_of, role_of, user_line, waits_on
from .node_log import NodeLog
from .processes import open_files
from .samples import Line, Looks
from .syscalls import FUTEX, At, Task, at, has_ended

MOST_COST = 0.005
"""Of a core."""
AIMED_COST = 0.004
"""What a look will cost is known from those before it."""
FIRST_LOOKS = 20
"""So many come soon, whatever they cost: a loop of a few seconds is to have an answer, too."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S, WRITES_APART_S = 0.05, 1.0, 0.5
STOPPING_S = 1.0
"""What a fork, or the end of a training, waits for the thread that looks: a disk that does not answer may hold it."""
MOST_LINES = 200
"""So many lines of code are told apart; what is seen beyond them is `other`."""
COMPUTES = {
    "collate": "collate",
    "sample": "decode",
    "hand_over": "hand_over",
    "start": "start",
    "shuffle": "shuffle",
    "save": "save",
    "child": "child_process",
}
"""What a reader that runs is at, by the part of the loader that it is in."""
AT_REST = frozenset({"idle", "waits_for_readers"})
OF_ROLE = frozenset({"idle", "ended", "start", "hand_over", "waits_for_readers"})
"""Parts of a loader that say more of a thread that waits than its system call does."""


def seen_as(found: At | None, role: str | None, reads: bool = False) -> str:
    """What a thread is at, in one word, by its system call and by the part of a loader that it is in.

    `reads`: its frames are known, and it prepares batches: what it computes in no other part is work on samples.
    """
    if role == "fills":  # threads of the worker's own read for a shuffle's buffer, and it waits for them
        return "shuffle"
    if found is None:
        return role if role in OF_ROLE else "hidden"
    if found.doing == "runs":
        other = "decode" if reads and role is None else "runs"
        return COMPUTES.get(role or "", "hand_over" if role == "waits_for_readers" else other)
    if role == "exchange" or (role == "backward" and found.doing in ("lock", "socket", "other")):
        return "exchange"
    if role == "save":
        return "save"
    return role if role in OF_ROLE and found.doing != "sleep" else found.doing


class Reading(NamedTuple):
    """Who loads for a loop now."""

    processes: Collection[int] = ()
    threads: Collection[int] = ()
    without_data: Collection[int] = ()
    """Processes that have said that they have no more to read in this pass."""


@dataclass
class Tally:
    """What was seen, counted."""

    load: Counter[str] = field(default_factory=Counter)
    readers: Counter[str] = field(default_factory=Counter)
    body: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    """Folders of files that were waited for while the loop waited."""
    lines: dict[tuple[str, str, str], tuple[int, set[int]]] = field(default_factory=dict)
    """Looks and steps, by phase, word and line of the user's code."""
    locked: int = 0

    def add(self, phase: str, word: str, found: At | None, line: str | None, step: int = 0, share: float = 1.0) -> None:
        """Count a thread that was seen."""
        getattr(self, phase)[word] += share
        if found is not None and found.doing in ("reads", "writes") and found.what:
            self.files[os.path.dirname(found.what)] += 1
        if line is not None:
            key = (phase, word, line)
            if key not in self.lines and len(self.lines) >= MOST_LINES:
                key = (phase, word, "other")
            count, steps = self.lines.get(key, (0, set()))
            steps.add(step)
            self.lines[key] = (count + 1, steps)

    def looks(self, **more: Any) -> Looks:
        """All of it, as the samples of a rank keep it."""
        lines = [Line(*key, count, len(steps)) for key, (count, steps) in self.lines.items()]
        files = dict(self.files.most_common(MOST_LINES))
        return Looks(dict(self.load), dict(self.readers), dict(self.body), files, lines, locked=self.locked, **more)


class Pace:
    """When to look next: by chance, and rarely enough for what looks cost."""

    def __init__(self) -> None:
        self._chance = random.Random()  # the training's own numbers must come as they would
        self._looks, self._mean_s, self._paused_s = 0, SHORTEST_PAUSE_S, 0.0
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """Note what a look has cost."""
        self._looks += 1
        self.spent_s += seconds
        self._mean_s = min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, 0.9 * self._mean_s + 0.1 * seconds / AIMED_COST))

    def next_s(self) -> float:
        """Seconds until the next look: after the first ones, all of them together keep within what they may cost."""
        owed_s = self.spent_s / AIMED_COST - self._paused_s if self._looks >= FIRST_LOOKS else 0.0
        pause_s = max(self._mean_s * self._chance.uniform(0.5, 1.5), owed_s)
        self._paused_s += pause_s
        return pause_s


_running: "weakref.WeakSet[Looker]" = weakref.WeakSet()


def _stop_all() -> None:
    for looker in [*_running]:
        looker.stop()


os.register_at_fork(
    before=_stop_all
)  # a process of one thread forks without a warning, and the child has no thread of ours


class Looker:
    """Looks at the loop's thread and at processes that read for it, in a thread of its own that ends when we fork."""

    def __init__(
        self,
        phase: Callable[[], tuple[str | None, int]],
        readers: Callable[[], Reading],
        write: Callable[[Tally], None] = lambda tally: None,
        writes_apart_s: float = WRITES_APART_S,
        node: NodeLog | None = None,
    ) -> None:
        """`write` is called about every so many seconds, in the thread that looks; `node` logs memory and clocks."""
        self.tally, self.pace, self.node = Tally(), Pace(), node
        self._writes_apart_s, self._buffers = writes_apart_s, Buffers()
        self._phase, self._readers, self._write = phase, readers, write
        self._loop_thread, self._native, self._written_s = 0, 0, time.monotonic()
        self._wake = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on, unless it does already; called in the thread of the loop."""
        if self.thread is not None:
            return
        self._loop_thread, self._native = threading.get_ident(), threading.get_native_id()
        self._wake = threading.Event()  # a thread that hangs at a disk keeps its own
        self.thread = threading.Thread(target=self._run, args=(self._wake,), name=NAME, daemon=True)
        self.thread.start()
        _running.add(self)

    def stop(self) -> None:
        """Look no more, until it is started again."""
        thread, self.thread = self.thread, None
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOPPING_S)

    def _run(self, wake: threading.Event) -> None:
        task = Task(os.getpid(), self._native)
        try:
            while not wake.wait(self.pace.next_s()):
                began_s = time.thread_time()
                self._look(task)
                if self.node is not None:
                    self.node.look(self._readers().processes)
                if time.monotonic() - self._written_s > self._writes_apart_s:
                    self._write(self.tally)
                    self._written_s = time.monotonic()
                self.pace.spend(time.thread_time() - began_s)
        finally:
            task.close()

    def _look(self, task: Task) -> None:
        phase, step = self._phase()
        frame = frame_of(self._loop_thread) if phase is not None else None
        if phase is None or frame is None:
            return
        role, line, named = role_of(frame), user_line(frame), waits_on(frame)
        if role == "backward" and not exchanges():
            role = None  # it waits for its own threads
        fills = phase != "body" and role in (None, "sample") and self._buffers.grow(frame)
        del frame
        if self._phase() != (phase, step):
            return  # it went on while it was looked at, as where a file of source was read
        found = task.at()  # last, as it gives Python's lock away: who called without giving it away goes on here
        word = seen_as(found, role, phase != "body")
        if word == "lock" and found is not None and found.what == FUTEX and named != "lock":
            word = "exchange" if named == "exchange" else _for_others(self._native, named == "thread") or word
            if word == "lock" and named is None and not self._is_beside_pythons_threads():
                word = "unknown"  # threads of a library, which have just ended
        if word == "decode" and fills:
            word = "shuffle"
        self.tally.add(phase, word, found, line, step)
        if phase == "load":
            self._look_at_readers()

    def _is_beside_pythons_threads(self) -> bool:
        """Whether another thread of Python is at something: it may keep Python's lock."""
        threads = [each.ident for each in threading.enumerate() if each.native_id not in looking()]
        frames = [frame_of(each or 0) for each in threads if each != self._loop_thread]
        return any(frame is not None and role_of(frame) not in AT_REST for frame in frames)

    def _look_at_readers(self) -> None:
        reading = self._readers()
        ended: tuple[str, At | None] = ("ended", None)
        seen = [ended if pid in reading.without_data else _seen_outside(pid) for pid in reading.processes]
        seen = seen or [_seen_beside(thread) for thread in reading.threads]
        for word, found in seen:
            self.tally.add("readers", word, found, None, share=1 / len(seen))
        self.tally.locked += any(word == "lock" for word, _ in seen)


NAME = "benchsuite-looks"
"""The threads that look."""


def looking() -> set[int]:
    """The threads that look, which load for nobody."""
    threads = [looker.thread for looker in [*_running]]
    return {thread.native_id for thread in threads if thread is not None and thread.native_id}


def _seen_outside(pid: int) -> tuple[str, At | None]:
    """What a process that reads is at; where it waits at a pipe of ours, it waits for work."""
    found = at(pid, pid)
    if found is None and has_ended(pid):
        return "ended", found
    if found is not None and found.what == FUTEX:
        for doing in ("runs", "reads", "faults"):
            if others_at(pid, pid, doing):  # for it: Python's lock has one holder, and libraries read in threads
                return doing, found
    at_pipe = found is not None and found.doing in ("pipe", "writes_pipe")
    if found is None or not at_pipe or found.what not in own_pipes(int(time.monotonic())):
        return seen_as(found, None), found
    return "hand_over" if found.doing == "writes_pipe" or others_at(pid, pid, "runs", "writes_pipe") else "idle", found


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def others_at(pid: int, thread: int, *doing: str) -> bool:
    """Whether another thread of a process, but for those that look, is at any of these."""
    others = {*_threads(pid)} - {thread} - looking()
    return any((found := at(pid, each)) is not None and found.doing in doing for each in others)


def _seen_beside(thread: int) -> tuple[str, At | None]:
    """What a thread of this process that reads is at."""
    found = at(os.getpid(), thread)
    known = [each.ident for each in threading.enumerate() if each.native_id == thread]
    frame = frame_of(known[0] or 0) if known else None
    role = None if frame is None else role_of(frame)
    if frame is None and found is not None and found.what == FUTEX:
        return "idle", found  # a library's own thread, which waits to be asked
    return seen_as(found, "idle" if role == "waits_for_readers" else role, frame is not None), found


def _for_others(thread: int, of_python: bool) -> str | None:
    """What a thread of this process waits for that waits until others have done something; None: for a lock.

    `of_python`: it waits for a thread of Python: where one of these waits for an answer, it waits for that as well.
    """
    if others_at(os.getpid(), thread, "runs"):
        return "unknown"  # they may work for it
    threads = {each.native_id for each in threading.enumerate()} - {thread, None} - looking() if of_python else set()
    seen = {found.doing for each in threads if (found := at(os.getpid(), each or 0)) is not None}
    return next((doing for doing in ("reads", "faults", "socket") if doing in seen), None)


@lru_cache(maxsize=1)
def own_pipes(_second: int) -> frozenset[str]:
    """The pipes that this process has open, looked up once a second."""
    return frozenset(name for name in open_files(os.getpid()) if name.startswith("pipe:"))
