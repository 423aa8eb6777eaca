"""Where an I/O trace is noted: words of memory that processes share, a slot for each thread.

Nothing is handed back at the end, so nothing is lost where a worker is killed. A slot has one writer.
"""

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

OPERATIONS = ("open", "stat", "read", "seek", "close", "mmap", "advise")
OPEN, STAT, READ, SEEK, CLOSE, MAP, ADVISE = range(len(OPERATIONS))
SPARE_SLOTS = 4
"""Threads besides the readers that may touch the dataset: the training's own, a loader's."""
LATENCY_BUCKETS: Final = 176
"""Four to an octave of nanoseconds."""
SIZE_BUCKETS: Final = 48
"""Bucket n holds sizes from 2^(n-1) to below 2^n; bucket 0 those of nothing."""
_FIELDS: Final = 5  # count, errors, bytes, nanoseconds, longest
_PID, _BATCHES, _OBSERVED, _READ_BYTES, _COUNTS = range(5)
UNKNOWN = -2
"""Where a descriptor's last read ended, when that was not observed; -1: there was none yet."""
_LATENCIES = _COUNTS + _FIELDS * len(OPERATIONS)
_SIZES = _LATENCIES + LATENCY_BUCKETS * len(OPERATIONS)
_ORDER = _SIZES + SIZE_BUCKETS
"""Reads that are the first of their descriptor, that begin where the last one ended, and others."""
_FILES = _ORDER + 3
_FILE_FIELDS: Final = 4  # opens, reads, bytes, size
now = time.perf_counter_ns


def latency_bucket(nanoseconds: int) -> int:
    """Which bucket of a latency histogram a duration belongs to."""
    octave = nanoseconds.bit_length()
    return octave << 2 | ((nanoseconds >> (octave - 3)) & 3 if octave > 2 else 0)


def latency_bounds(bucket: int) -> tuple[float, float]:
    """The least nanoseconds of a bucket, and where the next one begins."""
    octave, quarter = bucket >> 2, bucket & 3
    if octave <= 2:
        return (0.0, 1.0) if octave == 0 else (2.0 ** (octave - 1), 2.0**octave)
    base = 2.0 ** (octave - 1)
    return base * (1 + quarter / 4), base * (1 + (quarter + 1) / 4)


def quantile(latencies: Mapping[int, int], share: float) -> float:
    """Nanoseconds below which a share of the durations lies, linear within a bucket (an eighth to a quarter wide)."""
    wanted, below = share * sum(latencies.values()), 0
    for bucket in sorted(latencies):
        if below + latencies[bucket] >= wanted:
            low, high = latency_bounds(bucket)
            return low + (high - low) * max(0.0, wanted - below) / latencies[bucket]
        below += latencies[bucket]
    return 0.0


class SharedRows:
    """Rows of words that this process and those forked from it write, one for each thread that notes something."""

    def __init__(self, threads: int, width: int, name: str) -> None:
        self._width, self._number = width, threads + SPARE_SLOTS
        size = self._number * self._width * 8
        # Memory with a descriptor: processes agree on slots by locking it, and pages that nobody touched cost nothing.
        self._descriptor = os.memfd_create(name)
        os.ftruncate(self._descriptor, size)
        self._memory = mmap.mmap(self._descriptor, size)
        self._words = memoryview(self._memory).cast("q")
        self._mine, self._claiming = threading.local(), threading.Lock()

    def forget(self) -> None:
        """Forget all threads, in a forked child: its own have no slots yet."""
        self._mine, self._claiming = threading.local(), threading.Lock()

    def _claim(self) -> memoryview:
        """This thread's slot, when it first notes something; who comes too late for one of its own shares the last."""
        with self._claiming:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                starts = range(0, len(self._words), self._width)
                start = next((start for start in starts if not self._words[start + _PID]), starts[-1])
                self._words[start + _PID] = os.getpid()
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        slot = self._words[start : start + self._width]
        self._mine.slot = self._mine.own = slot
        return slot

    def own(self) -> memoryview:
        """This thread's slot, muted or not."""
        try:
            slot: memoryview = self._mine.own
        except AttributeError:
            slot = self._claim()
        return slot

    def used(self) -> npt.NDArray[np.int64]:
        """The rows that threads have claimed."""
        table = np.frombuffer(self._memory, np.int64).reshape(self._number, self._width)
        return table[table[:, _PID] > 0]

    def pids(self) -> list[int]:
        """The process of each slot in use."""
        return [int(pid) for pid in self.used()[:, _PID]]


class Slots(SharedRows):
    """Memory for the notes of `threads` threads about `files` files, in this process and those forked from it."""

    def __init__(self, threads: int, files: int) -> None:
        super().__init__(threads, _FILES + _FILE_FIELDS * files, "iotrace")
        self._nowhere = memoryview(bytearray(self._width * 8)).cast("q")

    def batch(self, observed: bool) -> None:
        """Note that this thread turns to its next batch, and whether what it does from now on is kept."""
        slot = self.own()
        slot[_BATCHES] += 1
        slot[_OBSERVED] += observed
        self._mine.slot = slot if observed else self._nowhere

    def counted(self, read_bytes: int) -> None:
        """Note what the kernel counted for this thread's read calls in an observed batch."""
        self.own()[_READ_BYTES] += read_bytes

    def noted(self) -> int:
        """Operations that this thread has noted."""
        return sum(self.own()[_COUNTS:_LATENCIES:_FIELDS])

    def note(self, operation: int, started: int, num_bytes: int = 0) -> memoryview:
        """Note an operation that began at `started` and has just ended; the slot."""
        took = now() - started
        try:
            slot: memoryview = self._mine.slot
        except AttributeError:
            slot = self._claim()
        at = _COUNTS + operation * _FIELDS
        slot[at] += 1
        if num_bytes:
            slot[at + 2] += num_bytes
        slot[at + 3] += took
        if took > slot[at + 4]:
            slot[at + 4] = took
        octave = took.bit_length()  # latency_bucket, without a call
        bucket = octave << 2 | ((took >> (octave - 3)) & 3 if octave > 2 else 0)
        slot[_LATENCIES + operation * LATENCY_BUCKETS + bucket] += 1
        return slot

    def failed(self, operation: int, started: int) -> None:
        """Note an operation that raised."""
        self.note(operation, started)[_COUNTS + operation * _FIELDS + 1] += 1

    def opened(self, number: int, started: int) -> None:
        """Note that a file was opened; -1 is one whose use is not followed."""
        slot = self.note(OPEN, started)
        if number >= 0:
            slot[_FILES + number * _FILE_FIELDS] += 1

    def looked_at(self, number: int, started: int, size: int) -> None:
        """Note that a file's size was asked for."""
        slot = self.note(STAT, started)
        if number >= 0:
            slot[_FILES + number * _FILE_FIELDS + 3] = size

    def read(self, state: list[int], started: int, num_bytes: int, offset: int) -> None:
        """Note a read; `state`: its file's number, where its last read ended (-1: none yet), its place."""
        slot = self.note(READ, started, num_bytes)
        slot[_SIZES + num_bytes.bit_length()] += 1
        number, end, _ = state
        if end != UNKNOWN:
            slot[_ORDER + (0 if end < 0 else 1 if end == offset else 2)] += 1
        state[1] = offset + num_bytes
        if number >= 0:
            at = _FILES + number * _FILE_FIELDS
            slot[at + 1] += 1
            slot[at + 2] += num_bytes

    def totals(self) -> dict[str, Any]:
        """Batches, operations, sizes and order of reads, over all slots."""
        used = self.used()
        words, counts = used.sum(axis=0), used[:, _COUNTS:_LATENCIES].reshape(len(used), len(OPERATIONS), _FIELDS)
        latencies = words[_LATENCIES:_SIZES].reshape(len(OPERATIONS), LATENCY_BUCKETS)
        longest = counts[:, :, 4].max(axis=0, initial=0)
        summed = counts.sum(axis=0)
        operations = {
            name: {
                "count": int(summed[number, 0]),
                "errors": int(summed[number, 1]),
                "bytes": int(summed[number, 2]),
                "ns": int(summed[number, 3]),
                "max_ns": int(longest[number]),
                "latencies": sparse(latencies[number]),
            }
            for number, name in enumerate(OPERATIONS)
            if summed[number, 0]
        }
        batches = {"batches": int(words[_BATCHES]), "observed_batches": int(words[_OBSERVED])}
        batches |= {"observed_read_bytes": int(words[_READ_BYTES])}
        return {
            **batches,
            "operations": operations,
            "sizes": sparse(words[_SIZES:_ORDER]),
            "order": words[_ORDER:_FILES].tolist(),
        }

    def files(self) -> dict[str, Any]:
        """How files were used, over all slots; `touched` is a bitmap in hex of those that were."""
        each = self.used()[:, _FILES:].reshape(-1, (self._width - _FILES) // _FILE_FIELDS, _FILE_FIELDS)
        opens, reads, num_bytes = (each[:, :, column].sum(axis=0) for column in range(3))
        touched = (opens > 0) | (reads > 0)
        sizes = each[:, :, 3].max(axis=0, initial=0)
        known = touched & (sizes > 0)
        return {
            "touched": np.packbits(touched).tobytes().hex(),
            "opens": int(opens.sum()),
            "most_opens": int(opens.max(initial=0)),
            "reads": int(reads.sum()),
            "bytes": int(num_bytes[known].sum()),
            "size_bytes": int(sizes[known].sum()),
        }


def sparse(histogram: npt.NDArray[np.int64]) -> dict[str, int]:
    """The buckets that hold something, by number in words, as JSON wants it."""
    return {str(bucket): int(histogram[bucket]) for bucket in np.flatnonzero(histogram)}
