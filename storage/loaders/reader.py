"""What loaders share: what they are built from, how their readers are counted, and our own reader.

The stream never ends and drops nothing: each of ranks x workers readers goes through its lane of an epoch and on into
the next, so batches may straddle epochs, every epoch holds each sample exactly once over all readers, and all ranks
take equally many steps.
"""

import mmap
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchsuite.storage import format_of
from benchsuite.storage.dataset.kinds import Kind, empty_batch, sample_rng
from benchsuite.storage.dataset.manifest import Dataset, Format, ReaderShare
from benchsuite.storage.dataset.sample import Allocate, Recycled, Sample, fresh
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders import Batch, ReaderCounts
from benchsuite.storage.observe.io_trace import observed

NUM_COUNTERS = 9
"""Samples, stored bytes, seconds of reading, decoding, needing, computing while reading, collating, unpacking;
failures."""
MAX_GAP_S = 0.0002
"""What a reader needs between two batches at most: a longer gap is waiting for room."""
MIN_WAIT_S = 0.0001
"""A shorter stretch without computing is not looked into: asking the kernel why would cost much of it."""
Filled = tuple[list[int], list[int]]
"""Rows of the index and epochs of the samples that were put into a slot."""


@dataclass(frozen=True)
class Slot:
    """Memory of one batch, and of each sample in it."""

    batch: Batch
    rows: Sequence[Mapping[str, Tensor]]

    @classmethod
    def empty(cls, reading: "LoaderInput") -> "Slot":
        """Make a slot in this process's memory, page-locked where that is asked for."""
        batch = empty_batch(reading.kind, reading.params, reading.batch_size, reading.pin_memory)
        rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(reading.batch_size)]
        return cls(batch, rows)


@dataclass(frozen=True)
class LoaderInput:
    """What a loader is built from, and each of its readers is told."""

    dataset: Dataset
    spec: DataSpec
    kind: Kind
    params: Mapping[str, int]
    batch_size: int
    rank: int
    world_size: int
    seed: int
    own_reader: Any = None
    """A user's own: a `Stock`, or what opens a dataset whose items are the samples at the rows of the index."""
    cuda_device: int | None = None
    """Which CUDA device this rank's batches go to; None: to none, whatever devices there are."""

    @cached_property
    def format(self) -> Format:
        """Return the dataset's format."""
        return format_of(self.dataset.manifest.format)

    def check(self) -> None:
        """Refuse what cannot be shared among so many readers.

        Raises:
            DatasetError: with the arithmetic.
        """
        trouble = self.format.problem(self.dataset.manifest, self.world_size * self.readers)
        if trouble:
            raise DatasetError(f"{self.dataset.folder}: {trouble}")

    @property
    def pin_memory(self) -> bool:
        """Whether batches are page-locked."""
        return self.spec.pin_memory and self.cuda_device is not None

    @property
    def readers(self) -> int:
        """Readers of one rank."""
        return self.spec.readers

    def share(
        self,
        number: int,
        epoch: int,
        allocate: Allocate = fresh,
        unpacked: Callable[[float], None] = lambda seconds: None,
    ) -> ReaderShare:
        """What reader `number` of this rank reads of an epoch; `unpacked` is as in `ReaderShare`."""
        spec, lane = self.spec, self.rank * self.readers + number
        lanes, direct = self.world_size * self.readers, spec.cache == "direct"
        return ReaderShare(
            lane, lanes, epoch, self.seed, spec.shuffle, spec.shuffle_buffer, allocate, direct, unpacked=unpacked
        )

    def samples(
        self,
        number: int,
        allocate: Allocate = fresh,
        unpacked: Callable[[float], None] = lambda seconds: None,
    ) -> Generator[tuple[Sample, int]]:
        """The samples of reader `number` of this rank, without end, and the epoch of each."""
        for epoch in count():
            for sample in self.format.read(self.dataset, self.share(number, epoch, allocate, unpacked)):
                yield sample, epoch


def shared_counters(readers: int) -> npt.NDArray[np.float64]:
    """Counters that forked workers write and the training process reads."""
    return np.frombuffer(mmap.mmap(-1, readers * NUM_COUNTERS * 8), dtype=np.float64).reshape(readers, NUM_COUNTERS)


def counted(counters: npt.NDArray[np.float64]) -> ReaderCounts:
    """What all readers have done."""
    samples, stored, read_s, decode_s, needed_s, read_cpu_s, collate_s, unpack_s, failures = map(
        float, counters.sum(axis=0)
    )
    return ReaderCounts(
        int(samples),
        int(stored),
        read_s,
        decode_s,
        failed=bool(failures),
        needed_s=needed_s,
        readers=len(counters),
        read_cpu_s=read_cpu_s,
        collate_s=collate_s or None,
        unpack_s=unpack_s or None,
    )


class RunQueue:
    """How long the thread that uses this waits for a core; 0 where the kernel does not keep it.

    By the second field of /proc/thread-self/schedstat, in ns (Documentation/scheduler/sched-stats.rst). The file says
    what is asked of the thread that opened it, so it is opened by the first `begin`.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._opened = False
        self._last_s = 0.0

    def begin(self) -> None:
        """Count from here on."""
        if not self._opened:
            self._opened = True
            with suppress(OSError):
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._last_s = self._now_s()

    def waited_s(self, idle_s: float) -> float:
        """Return the wait for a core in a stretch that ends now, of which the thread did not compute for `idle_s`."""
        if idle_s < MIN_WAIT_S or self._file is None:
            return 0.0
        last_s, self._last_s = self._last_s, self._now_s()
        return min(self._last_s - last_s, idle_s)

    def _now_s(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return self._last_s

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Reader:
    """One reader: decodes the samples of its lane, epoch after epoch, into the rows of batches."""

    def __init__(self, reading: LoaderInput, number: int, counters: npt.NDArray[np.float64]) -> None:
        self._reading, self._counters = reading, counters
        self._classes = reading.dataset.index["label"] if reading.kind.name == "image" else None
        self._num_classes = reading.dataset.manifest.num_classes
        self._unpack_s = 0.0
        self._samples = reading.samples(number, Recycled(int(reading.dataset.index["bytes"].max())), self._unpacked)
        self._queue = RunQueue()
        self._done_s: float | None = None
        self._least_gap_s = MAX_GAP_S

    def fill(self, slot: Slot) -> Filled:
        """Decode the next samples into a slot."""
        try:
            return observed(lambda: self._fill(slot))
        except BaseException:
            self._counters[-1] += 1
            raise

    def _unpacked(self, seconds: float) -> None:
        self._unpack_s += seconds

    def _fill(self, slot: Slot) -> Filled:
        rows, epochs = [], []
        reading = self._reading
        before = time.perf_counter() - self._handing_on_s()
        self._queue.begin()
        for row in slot.rows:
            started, idle = time.perf_counter(), time.thread_time()
            sample, epoch = next(self._samples)
            read, busy = time.perf_counter(), time.thread_time()
            read_queued_s = self._queue.waited_s(read - started - (busy - idle))
            reading.kind.decode(sample, reading.params, sample_rng(reading.seed, epoch, sample.key), row)
            if self._classes is not None:
                check_class(sample, int(row["label"]), int(self._classes[sample.index]), self._num_classes)
            done = time.perf_counter()
            unpack_s, self._unpack_s = self._unpack_s, 0.0
            read_s = max(read - started - read_queued_s - unpack_s, 0.0)
            decode_s = done - read - self._queue.waited_s(done - read - (time.thread_time() - busy))
            read_cpu_s, needed_s = max(busy - idle - unpack_s, 0.0), done - before
            decode_s += unpack_s
            self._counters += (1, sample.stored_bytes, read_s, decode_s, needed_s, read_cpu_s, 0, unpack_s, 0)
            before = done
            rows.append(sample.index)
            epochs.append(epoch)
        self._done_s = time.perf_counter()
        return rows, epochs

    def _handing_on_s(self) -> float:
        """What lies between two batches of a reader that need not wait for room: the least that was seen."""
        if self._done_s is None:
            return 0.0
        self._least_gap_s = min(self._least_gap_s, time.perf_counter() - self._done_s)
        return self._least_gap_s

    def close(self) -> None:
        """Close the files that are open."""
        self._samples.close()
        self._queue.close()


def check_class(sample: Sample, found: int, said: int, num_classes: int | None) -> None:
    """Refuse an image of another class than the index has, or of one that the manifest does not count.

    Raises:
        DatasetError: it is, with file and sample.
    """
    if found != said:
        what = f"class {found} stands where the index has {said}"
    elif num_classes is not None and not 0 <= found < num_classes:
        what = f"class {found}, the manifest says {num_classes} classes, from 0 on"
    else:
        return
    raise DatasetError(f"{sample.source}: sample {sample.key!r}: {what}")


class Copies:
    """Copies of the batch in use to a CUDA device: its memory is free when they are done."""

    def __init__(self, cuda_device: int | None) -> None:
        self._cuda_device = cuda_device
        self._event: torch.cuda.Event | None = None

    def queued(self) -> None:
        """Note that all copies are queued: what is queued later on the stream does not read the batch's memory."""
        if self._cuda_device is not None:
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # spinning takes a core
            self._event.record(torch.cuda.current_stream(self._cuda_device))

    def done(self) -> "torch.cuda.Event | None":
        """An event after them, or, where nobody noted them, after all that is queued by now; None without a device."""
        if self._event is None:
            self.queued()
        event, self._event = self._event, None
        return event
