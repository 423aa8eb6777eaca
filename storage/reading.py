"""Reading as fast as a path gives: threads with preadv into aligned buffers that are used again and again.

Reads release Python's lock, so that as many are under way as there are threads.
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
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Literal

import numpy as np

Pattern = Literal["sequential", "random"]
PATTERNS: tuple[Pattern, ...] = ("sequential", "random")
ALIGNMENT_BYTES = 4096
HUGE_BYTES = 2 << 20
"""Direct reads into huge pages are few long transfers; into scattered small ones half as fast, and by chance."""


@dataclass(frozen=True)
class Reading:
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
) -> Reading:
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
            return Reading(sum(done for done, _ in found), max(end for _, end in found) - start_s, _user_s() - lock_s)
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
