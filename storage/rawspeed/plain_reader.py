"""What given files, such as those of a dataset, give to so many threads: the ceiling of a loader that reads them.

Threads read by preadv into aligned buffers that are used again and again. Reads release Python's lock, so that as many
are under way as there are threads.
"""

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from benchsuite.storage.errors import told_by_file

PIECE_BYTES = 4 << 20
"""Files are read in pieces of that size; smaller ones whole."""
SLICES = 5
MIN_FILES = 64
"""Number of files for each node from which on nodes are dealt whole files."""


@dataclass(frozen=True)
class Ceiling:
    """What files gave to so many threads."""

    bytes_per_s: float
    samples_bytes_per_s: tuple[float, ...]
    """The rates of equal slices of the time."""
    num_bytes: int
    seconds: float
    threads: int
    whole: bool
    """All files were read to their end before the time was over."""


class _Pieces:
    """Pieces of files in file order, dealt to whoever asks next."""

    def __init__(self, pieces: Iterator[tuple[Path, int]]) -> None:
        self._lock = Lock()
        self._pieces = pieces
        self.whole = False

    def next(self) -> tuple[Path, int] | None:
        """The next piece, or None after the last."""
        with self._lock:
            piece = next(self._pieces, None)
            self.whole = self.whole or piece is None
            return piece


def pieces_of(files: Sequence[Path], share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Path, int]]:
    """Files and where to begin in them; of `share` (number, of how many), so that all shares make up each piece once.

    Many files are dealt whole, so that nobody looks at those of others; the pieces of few in turn.
    """
    number, count = share
    whole = len(files) >= MIN_FILES * count
    mine = files[number::count] if whole else files
    found = ((path, start) for path in mine for start in range(0, path.stat().st_size, PIECE_BYTES))
    return found if whole else islice(found, number, None, count)


def read_ceiling(
    files: Sequence[Path], threads: int, seconds: float, share: tuple[int, int] = (0, 1)
) -> Ceiling | None:
    """What these files give to so many threads in file order, through the page cache as it is; each is read once.

    The caller evicts them first where cold reads are meant. Where other nodes read at the same time, each reads its
    `share` (number, of how many). None where there is nothing to read.

    Raises:
        DatasetError: a file cannot be read.
    """
    pieces, buffers = _Pieces(pieces_of(files, share)), aligned_buffers(threads, PIECE_BYTES)
    with told_by_file(files[0].parent if files else ""), ThreadPoolExecutor(threads) as pool:
        start_s = time.perf_counter()
        deadline_s = start_s + seconds
        logs = list(pool.map(_read_pieces, [pieces] * threads, buffers, [deadline_s] * threads))
    log = sorted((at_s - start_s, num_bytes) for own in logs for at_s, num_bytes in own)
    total = sum(num_bytes for _, num_bytes in log)
    if not total:
        return None
    took_s = log[-1][0]
    return Ceiling(total / took_s, slice_rates(log, took_s), total, took_s, threads, pieces.whole)


def slice_rates(log: Sequence[tuple[float, int]], seconds: float, slices: int = SLICES) -> tuple[float, ...]:
    """Rates over equal slices of the time, from bytes and when they had come; a piece counts where it ended."""
    sums = [0] * slices
    for at_s, num_bytes in log:
        sums[min(slices - 1, int(at_s / seconds * slices))] += num_bytes
    return tuple(found * slices / seconds for found in sums)


def _read_pieces(pieces: _Pieces, buffer: memoryview, deadline_s: float) -> list[tuple[float, int]]:
    """Read pieces until they or the time are over: when each had come, and its bytes."""
    log: list[tuple[float, int]] = []
    opened, descriptor = Path(), -1
    try:
        while time.perf_counter() < deadline_s and (piece := pieces.next()) is not None:
            path, start = piece
            if path != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                opened, descriptor = path, os.open(path, os.O_RDONLY)
            done = _fill(descriptor, buffer, start)
            log.append((time.perf_counter(), done))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return log


def _fill(descriptor: int, buffer: memoryview, start: int) -> int:
    """Bytes read from there until the buffer is full or the file ends."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], start + done)
        if not count:
            break
        done += count
    return done


Pattern = Literal["sequential", "random"]
PATTERNS: tuple[Pattern, ...] = ("sequential", "random")
ALIGNMENT_BYTES = 4096
HUGE_BYTES = 2 << 20
"""Direct reads into huge pages are few long transfers; into scattered small ones half as fast, and by chance."""


@dataclass(frozen=True)
class ReadTiming:
    """What threads have read of a file, in which time."""

    num_bytes: int
    seconds: float
    lock_s: float
    """CPU seconds in Python, where one thread at a time can be."""

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds


@dataclass
class Deadline:
    """The moment at which threads end their work, which may be moved while they are at it."""

    at_s: float = float("inf")
    """time.perf_counter()."""


@contextmanager
def ending_early() -> Iterator[Deadline]:
    """A deadline that is over for threads whose results nobody waits for any more."""
    deadline = Deadline()
    try:
        yield deadline
    finally:
        deadline.at_s = 0.0


def aligned_buffers(count: int, num_bytes: int) -> list[memoryview]:
    """Buffers on boundaries of huge pages, and in such where the kernel has some, whose pages have been touched."""
    return [_aligned_buffer(num_bytes) for _ in range(count)]


def _aligned_buffer(num_bytes: int) -> memoryview:
    pages = mmap.mmap(-1, (-(-num_bytes // HUGE_BYTES) + 1) * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(pages)) % HUGE_BYTES
    buffer = memoryview(pages)[start : start + num_bytes]
    buffer[:] = bytes(num_bytes)
    return buffer


def takes_direct(path: Path) -> bool:
    """Whether a file can be read past the page cache."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        os.preadv(descriptor, aligned_buffers(1, ALIGNMENT_BYTES), 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def offsets(pattern: Pattern, size_bytes: int, block_bytes: int, depth: int) -> list[list[int]]:
    """Where each reader reads: a share of the file from its start to its end, or blocks of everywhere, each once."""
    blocks = size_bytes // block_bytes
    if pattern == "random":
        order = np.random.default_rng().permutation(blocks) * block_bytes
        return [order[reader::depth].tolist() for reader in range(depth)]
    share = blocks // depth
    return [[block * block_bytes for block in range(n * share, (n + 1) * share)] for n in range(depth)]


def read_file(
    path: Path, plan: Sequence[Sequence[int]], buffers: Sequence[memoryview], seconds: float, direct: bool, again: bool
) -> ReadTiming:
    """Read a file's blocks by one thread for each list of offsets, for so long.

    With `again` readers start anew when they are through, as is right where nothing is cached; else they end. What is
    raised in the waiting thread, as by a signal, ends them after the block they are at.
    """
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    descriptors = [os.open(path, flags) for _ in plan]
    readers = len(plan)
    try:
        if not direct:
            for descriptor, order in zip(descriptors, plan, strict=True):
                os.posix_fadvise(descriptor, 0, 0, _advice(order))
        orders = [chain.from_iterable(repeat(order)) if again else iter(order) for order in plan]
        with ThreadPoolExecutor(readers) as pool, ending_early() as deadline:
            lock_s, start_s = _user_s(), time.perf_counter()
            deadline.at_s = start_s + seconds
            found = list(pool.map(_read, descriptors, orders, buffers, [deadline] * readers))
            return ReadTiming(
                sum(done for done, _ in found), max(end for _, end in found) - start_s, _user_s() - lock_s
            )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _advice(order: Sequence[int]) -> int:
    """What the kernel is told to expect, as fio does."""
    forward = all(earlier < later for earlier, later in pairwise(order))
    return os.POSIX_FADV_SEQUENTIAL if forward else os.POSIX_FADV_RANDOM


def _read(descriptor: int, order: Iterator[int], buffer: memoryview, deadline: Deadline) -> tuple[int, float]:
    """Bytes read, and when that was done."""
    done, vector, preadv, now = 0, [buffer], os.preadv, time.perf_counter
    for offset in order:
        done += preadv(descriptor, vector, offset)
        if now() >= deadline.at_s:
            break
    return done, now()


def _user_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime
