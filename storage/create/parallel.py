"""Make samples in many processes, in order; large arrays come back through memory that is used again and again."""

import ctypes
import mmap
import os
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.sample import Allocate, Sample, Value, content_digest
from benchsuite.storage.errors import DatasetError

Make = Callable[[int, Allocate], Sample]
"""Makes the sample of an index. Of what it allocates (once a sample) its arrays may be views."""
_PR_SET_PDEATHSIG = 1
_mapped: dict[str, mmap.mmap] = {}


class _Shared(NamedTuple):
    """An array that lies in a slot."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


def in_parallel(make: Make, count: int, processes: int) -> Generator[Sample]:
    """The samples 0 .. count - 1, made in `processes` processes; arrays hold until the next sample is drawn.

    No more than twice as many samples as processes are under way, however slowly they are taken.
    """
    slots = [os.memfd_create(f"sample-{number}") for number in range(2 * processes + 1)]
    paths = [f"/proc/{os.getpid()}/fd/{slot}" for slot in slots]
    free, pending = deque(paths), deque[tuple[Future[Sample], str]]()
    indices = iter(range(count))
    _outlive_the_terminal()
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_end_with_parent, initargs=(os.getpid(),)
    )
    try:
        while True:
            while len(free) > 1 and (index := next(indices, None)) is not None:
                path = free.popleft()
                pending.append((pool.submit(_make, make, index, path), path))
            if not pending:
                return
            future, path = pending.popleft()
            yield _unpacked(future.result(), path)
            free.append(path)
    except BrokenProcessPool as error:
        what = "a process that makes samples ended early: out of memory, or a script without a main guard"
        raise DatasetError(what) from error
    finally:
        _end(pool)
        for slot, path in zip(slots, paths, strict=True):
            _mapped.pop(path, None)
            os.close(slot)


def _end(pool: ProcessPoolExecutor) -> None:
    """Drop what is not begun, and wait for the processes."""
    try:
        pool.shutdown(cancel_futures=True)
    except RuntimeError:  # a signal came while it started the thread that would end them
        for process in pool._processes.values():
            process.kill()


def _outlive_the_terminal() -> None:
    """Start Python's tracker of semaphores out of reach of SIGHUP: should it die before us, the next one complains."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make(make: Make, index: int, path: str) -> Sample:
    """In a worker: make a sample, and replace its arrays in the slot by their places."""
    memory: list[npt.NDArray[np.uint8]] = []

    def allocate(name: str, num_bytes: int) -> npt.NDArray[np.uint8]:
        memory.append(_slot(path, num_bytes))
        return memory[-1]

    sample = make(index, allocate)
    base = memory[0].__array_interface__["data"][0] if memory else 0
    fields = {name: _place(value, base) if memory else value for name, value in sample.fields.items()}
    return replace(sample, fields=fields, digest=content_digest(sample))


def _slot(path: str, num_bytes: int = 0) -> npt.NDArray[np.uint8]:
    """A slot's memory, made larger where that is too little; what is not touched occupies nothing."""
    mapped, size = _mapped.get(path), os.stat(path).st_size
    if size < num_bytes:
        size = 1 << (num_bytes - 1).bit_length()  # seldom too small for the next sample
        os.truncate(path, size)
    if mapped is None or len(mapped) < size:
        descriptor = os.open(path, os.O_RDWR)
        try:
            mapped = _mapped[path] = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)


def _place(value: Value, base: int) -> Value:
    if not isinstance(value, np.ndarray):
        return value
    offset = value.__array_interface__["data"][0] - base
    return _Shared(offset, value.dtype.str, value.shape)  # type: ignore[return-value]


def _unpacked(sample: Sample, path: str) -> Sample:
    """In the parent: the sample with its arrays where they lie."""
    if not any(isinstance(value, _Shared) for value in sample.fields.values()):
        return sample
    memory = _slot(path)
    fields: dict[str, Value] = {}
    for name, value in sample.fields.items():
        if isinstance(value, _Shared):
            size = int(np.prod(value.shape)) * np.dtype(value.dtype).itemsize
            fields[name] = memory[value.offset : value.offset + size].view(value.dtype).reshape(value.shape)
        else:
            fields[name] = value
    return replace(sample, fields=fields)


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this worker when its parent is killed, which the pool would not notice."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed while this worker started
        os._exit(1)
