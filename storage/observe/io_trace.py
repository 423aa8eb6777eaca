"""The I/O trace of a rank and its readers: what they do with a dataset's files, and what the kernel counted.

While a `Tracer` is on, the calls by which Python code opens, looks at, reads and closes files (os.open, os.preadv,
open() ...) are replaced, in this process and in those forked from it, by ones that note what concerns the dataset.
What C libraries do for themselves (h5py's chunks, LMDB's pages, DALI's readers) these do not see: read calls and page
faults of the same processes, by the kernel's counters, are kept beside.
"""

import builtins
import io
import math
import mmap
import os
import random
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, Final, Self, TypeVar

from benchsuite.inside.processes import process_io, processes_io
from benchsuite.storage import format_of
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe.io_slots import ADVISE, CLOSE, MAP, OPEN, SEEK, STAT, UNKNOWN, Slots, now

MAX_FOLLOWED_FILES = 1 << 16
"""The most files that are followed: of datasets with more, evenly spaced ones are."""
NOTE_NS, LOOK_NS = 2000, 20_000
"""What noting an operation costs, about; and what the kernel's counters do, before and after a batch."""
MAX_SHARE, SPARSE_SHARE = 0.02, 0.005
"""How much of a reader's time noting may take; where it would take more, so few batches are observed that it takes
the smaller share."""
_REAL: Final[Mapping[str, Any]] = {
    name: getattr(os, name)
    for name in ("open", "stat", "fstat", "read", "pread", "preadv", "lseek", "close", "posix_fadvise")
}
_open_file = io.open
_Map = mmap.mmap
_active: "Tracer | None" = None
T = TypeVar("T")
State = list[int]
"""What is known of an open descriptor: number of its file, where its last read ended (-1: none yet), its place."""


def observed(fill: Callable[[], T]) -> T:
    """What a reader does for its next batch, under the tracer that is on, if one is."""
    return fill() if _active is None else _active.batch(fill)


class _File(io.FileIO):
    """A file of the dataset that notes how it is used."""

    def __init__(self, tracer: "Tracer", file: Any, number: int, closefd: bool) -> None:
        self._tracer, self._slots = tracer, tracer.slots
        self._state: State = [number, -1, 0]
        started = now()
        try:
            super().__init__(file, "r", closefd)
        except OSError:
            self._slots.failed(OPEN, started)
            raise
        if not isinstance(file, int):
            self._slots.opened(number, started)
            tracer.states[self.fileno()] = self._state

    def _done(self, started: int, num_bytes: int) -> None:
        self._slots.read(self._state, started, num_bytes, self._state[2])
        self._state[2] += num_bytes

    def readinto(self, buffer: Any) -> int:
        started = now()
        count = super().readinto(buffer)
        self._done(started, count or 0)
        return count

    def read(self, size: int | None = -1) -> bytes:
        started = now()
        content = super().read(-1 if size is None else size)
        self._done(started, len(content or b""))
        return content

    def readall(self) -> bytes:
        started = now()
        content = super().readall()
        self._done(started, len(content or b""))
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        started = now()
        self._state[2] = super().seek(offset, whence)
        self._slots.note(SEEK, started)
        return self._state[2]

    def close(self) -> None:
        if self.closed:
            return super().close()
        state = self._tracer.states.pop(self.fileno(), None) if self.closefd else None
        started = now()
        super().close()
        if state is not None:
            self._slots.note(CLOSE, started)


def _mapping(tracer: "Tracer") -> type[mmap.mmap]:
    """mmap.mmap that notes which files are mapped."""

    class Noted(_Map):
        def __new__(cls, fileno: int, length: int, *arguments: Any, **options: Any) -> Self:
            started = now()
            made = super().__new__(cls, fileno, length, *arguments, **options)
            if fileno in tracer.states:
                tracer.slots.note(MAP, started, len(made))
            return made

    return Noted


class Tracer:
    """Notes what this process and those forked from it do with a dataset's files, from `start` to `finish`."""

    def __init__(self, dataset: Dataset, readers: int) -> None:
        files = list(dict.fromkeys(map(str, dataset.data_files())))
        every = -(-len(files) // MAX_FOLLOWED_FILES) or 1
        form = format_of(dataset.manifest.format)
        self._listed, self._mapped, self._whole = len(files), _is_mapped(dataset), form.file_per_sample
        self._numbers = {name: number for number, name in enumerate(files[::every])}
        self._prefix = f"{dataset.folder}{os.sep}"
        self.slots = Slots(readers, len(self._numbers))
        self.states: dict[int, State] = {}
        self._replaced: list[tuple[ModuleType, str, Any]] = []
        self._noting: dict[tuple[ModuleType, str], Any] = {}
        self._lane, self._random = threading.local(), random.Random(0)
        self._switching, self._observing, self._on = threading.Lock(), 0, True
        self._started_s, self._before, self._pid = 0.0, process_io(os.getpid()), os.getpid()

    def start(self) -> "Tracer":
        """Begin to note.

        Raises:
            RuntimeError: another one is on in this process.
        """
        global _active
        if _active is not None:
            raise RuntimeError("another I/O trace is on in this process")
        _active, self._started_s, self._before = self, time.perf_counter(), process_io(self._pid)
        self._on = True
        for name in _REAL:
            by = self._reading(name) if name in ("read", "pread", "preadv") else getattr(self, f"_{name}")
            self._replace(os, name, by)
        for module, name in ((builtins, "open"), (io, "open"), (tarfile, "bltn_open")):
            self._replace(module, name, self._open_file)
        self._replace(mmap, "mmap", _mapping(self))
        return self

    def _replace(self, module: ModuleType, name: str, by: Any) -> None:
        self._replaced.append((module, name, getattr(module, name)))
        self._noting[module, name] = by
        setattr(module, name, by)

    def stop(self) -> None:
        """Give the calls back."""
        global _active
        for module, name, original in self._replaced:
            setattr(module, name, original)
        self._replaced = []
        if _active is self:
            _active = None

    def batch(self, fill: Callable[[], T]) -> T:
        """Run what a reader does for a batch, observed or not, so that noting takes MAX_SHARE of its time at most.

        Where nobody in this process observes, the calls are the real ones, which costs nothing; but formats that keep
        files open have these noted, so that they are known later.
        """
        lane = self._lane
        lane.left = getattr(lane, "left", 1) - 1
        chosen = lane.left <= 0
        self._switch(chosen)
        self.slots.batch(chosen)
        if not chosen:
            return fill()
        started, before, read = now(), self.slots.noted(), self._read_bytes()
        try:
            return fill()
        finally:
            self.slots.counted(self._read_bytes() - read)
            share = ((self.slots.noted() - before) * NOTE_NS + LOOK_NS) / (now() - started)
            every = math.ceil(share / SPARSE_SHARE) if share > MAX_SHARE else 1
            lane.left = self._random.randint(1, 2 * every - 1)
            with self._switching:
                self._observing -= 1

    def _read_bytes(self) -> int:
        """Bytes of this thread's read calls so far, by the kernel; 0 where it does not tell."""
        try:
            if not hasattr(self._lane, "io"):
                self._lane.io = _REAL["open"]("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
            content: bytes = _REAL["pread"](self._lane.io, 64, 0)
        except OSError:
            return 0
        return int(content.split(None, 2)[1])

    def _switch(self, observe: bool) -> None:
        """Have the calls noted while at least one thread observes."""
        with self._switching:
            self._observing += observe
            if self._on == (self._observing > 0):
                return
            self._on = not self._on
            if self._on and self._whole:
                self.states.clear()
            for state in list(self.states.values()) if self._on else ():
                state[1] = UNKNOWN
            for module, name, original in self._replaced:
                if self._whole or (module is os and name not in ("open", "close")):
                    setattr(module, name, self._noting[module, name] if self._on else original)

    def forget(self) -> None:
        """Forget all threads, in a forked child, whose threads are others."""
        self.slots.forget()
        self._lane, self._switching, self._observing = threading.local(), threading.Lock(), 0

    def finish(self, delivered_bytes: int) -> dict[str, Any]:
        """Stop, while the workers still live, and tell what was noted; `delivered_bytes` were handed on meanwhile."""
        self.stop()
        seconds, pids, own = time.perf_counter() - self._started_s, self.slots.pids(), process_io(self._pid)
        workers = sorted(set(pids) - {self._pid})
        return {
            "by": "wrappers",
            "seconds": seconds,
            "threads": len(pids),
            "workers": len(workers),
            **self.slots.totals(),
            "files": {"listed": self._listed, "followed": len(self._numbers), **self.slots.files()},
            "counters": {
                "workers": asdict(whole) if (whole := processes_io(workers)) else None,
                "rank": asdict(own.grown(self._before)) if own and self._before else None,
            },
            "delivered_bytes": delivered_bytes,
            "mapped": self._mapped,
        }

    def _number(self, path: Any) -> int | None:
        """Number of a file of the dataset, -1 of one whose use is not followed; None of what is none."""
        name = path if isinstance(path, str) else os.fspath(path) if hasattr(path, "__fspath__") else None
        if not isinstance(name, str):
            return None
        found = self._numbers.get(name)
        return found if found is not None else -1 if name.startswith(self._prefix) else None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        number = self._number(path)
        started = now()
        try:
            descriptor: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        except OSError:
            if number is not None:
                self.slots.failed(OPEN, started)
            raise
        if number is not None:
            self.slots.opened(number, started)
            self.states[descriptor] = [number, -1, 0]
        return descriptor

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        state = self.states.get(file) if isinstance(file, int) else None
        number = state[0] if state else self._number(file)
        plain = isinstance(mode, str) and set(mode) <= set("rbt") and opener is None and ("b" in mode or buffering)
        if number is None or not plain:
            return _open_file(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _File(self, file, number, closefd)
        if not buffering:
            return raw
        buffered = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

    def _stat(self, path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, int):
            return self._fstat(path)
        number = self._number(path)
        started = now()
        try:
            found: os.stat_result = _REAL["stat"](path, **options)
        except OSError:
            if number is not None:
                self.slots.failed(STAT, started)
            raise
        if number is not None:
            self.slots.looked_at(number, started, found.st_size)
        return found

    def _fstat(self, fd: int) -> os.stat_result:
        started = now()
        found: os.stat_result = _REAL["fstat"](fd)
        state = self.states.get(fd)
        if state is not None:
            self.slots.looked_at(state[0], started, found.st_size)
        return found

    def _reading(self, name: str) -> Callable[..., Any]:
        """`os.read`, `os.pread` or `os.preadv` that notes what it reads, the first from the descriptor's own place."""
        real, states, slots = _REAL[name], self.states, self.slots

        def read(fd: int, wanted: Any, *place: int) -> Any:
            started = now()
            found = real(fd, wanted, *place)
            state = states.get(fd)
            if state is not None:
                count = found if name == "preadv" else len(found)
                slots.read(state, started, count, place[0] if place else state[2])
                if not place:
                    state[2] += count
            return found

        return read

    def _lseek(self, fd: int, position: int, how: int) -> int:
        started = now()
        place: int = _REAL["lseek"](fd, position, how)
        state = self.states.get(fd)
        if state is not None:
            state[2] = place
            self.slots.note(SEEK, started)
        return place

    def _close(self, fd: int) -> None:
        state = self.states.pop(fd, None)  # before it is closed: another thread may get the number at once
        started = now()
        _REAL["close"](fd)
        if state is not None:
            self.slots.note(CLOSE, started)

    def _posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        started = now()
        _REAL["posix_fadvise"](fd, offset, length, advice)
        if fd in self.states:
            self.slots.note(ADVISE, started, length)


def _is_mapped(dataset: Dataset) -> bool:
    """Whether a dataset's format maps its files, which nobody does with objects."""
    return format_of(dataset.manifest.format).reads == "mapped" and not isinstance(dataset.folder, ObjectPath)


def _forget_in_child() -> None:
    if _active is not None:
        _active.forget()


os.register_at_fork(after_in_child=_forget_in_child)
