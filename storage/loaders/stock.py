"""Reader `stock`: PyTorch's DataLoader with its default collate over a dataset as users of a format's library write it.

Each worker reads the same share of every epoch as one of our own readers does. Libraries do not say how long they read
and decode, so the kernel is asked: of each sample's time, what the worker's thread computed in user mode is preparing;
the rest, without the wait for a core, is fetching: waiting for storage, and the kernel's copying.
"""

import os
import resource
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from benchsuite.storage import STOCK, STOCK_GROUP, load
from benchsuite.storage.dataset.kinds import sample_rng
from benchsuite.storage.dataset.manifest import ReaderShare, dealt, text
from benchsuite.storage.errors import DatasetError, reason
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.storage.loaders.reader import LoaderInput, RunQueue, counted, shared_counters
from benchsuite.storage.observe.counters import ProcessIO, processes_io
from benchsuite.storage.observe.io_trace import observed
from benchsuite.storage.stock.reader import ByRow, Fields, Stock, ready

Batch = tuple[dict[str, torch.Tensor], list[int], list[int]]
"""Tensors as collated, rows of the index, epochs."""


class _Times:
    """Seconds of a worker's reading thread, as the kernel keeps them."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue
        queue.begin()
        self._began = self._now()

    def since(self) -> tuple[float, float, float]:
        """Return seconds of fetching, of preparing, and of fetching in which a core computed.

        What other threads of the worker compute meanwhile is no fetching either: the one that hands on the batch before
        holds Python's lock, for which this thread then waits.
        """
        wall_s, user_s, system_s, all_s = (now - began for now, began in zip(self._now(), self._began, strict=True))
        waited_s = self._queue.waited_s(wall_s - user_s - system_s)
        idle_s = max(wall_s - user_s - system_s - waited_s, 0.0)
        blocked_s = max(idle_s - max(all_s - user_s - system_s, 0.0), 0.0)
        return system_s + blocked_s, user_s, system_s

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        """Wall, user and system seconds of this thread, and seconds computed by all threads of the process."""
        own = resource.getrusage(resource.RUSAGE_THREAD)
        return time.perf_counter(), own.ru_utime, own.ru_stime, time.process_time()


class _Worker(IterableDataset[Batch]):
    """What one worker reads, batch after batch, without end."""

    def __init__(self, reading: LoaderInput, stock: Stock, counters: npt.NDArray[np.float64]) -> None:
        self._reading, self._stock, self._counters = reading, stock, counters
        self._augments = reading.kind.name in ("image", "volume")

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        number = info.id if info else 0
        try:
            yield from self._batches(number)
        except Exception as error:
            self._counters[number][-1] += 1
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(f"{self._reading.dataset.folder}: {self._stock.library}: {reason(error)}") from error

    def _batches(self, number: int) -> Iterator[Batch]:
        found, counters, queue = self._found(number), self._counters[number], RunQueue()
        while True:
            yield observed(lambda: self._batch(found, counters, queue))

    def _batch(self, found: Iterator[tuple[int, int, Fields]], counters: Any, queue: RunQueue) -> Batch:
        reading, samples, rows, epochs = self._reading, [], [], []
        began_s, times = time.perf_counter(), _Times(queue)
        for _ in range(reading.batch_size):
            row, epoch, fields = next(found)
            key = reading.dataset.key(row)
            rng = sample_rng(reading.seed, epoch, key) if self._augments else None
            samples.append(ready(reading.kind, key, fields, reading.params, rng))
            rows.append(row)
            epochs.append(epoch)
        batch = default_collate(samples)
        stored = int(reading.dataset.index["bytes"][rows].sum())
        fetch_s, prepare_s, kernel_s = times.since()
        counters += (len(rows), stored, fetch_s, prepare_s, time.perf_counter() - began_s, kernel_s, 0)
        return batch, rows, epochs

    def _found(self, number: int) -> Iterator[tuple[int, int, Fields]]:
        """Row, epoch and fields of each sample of the worker's share, epoch after epoch."""
        reading = self._reading
        by_row = self._stock.by_row(reading.dataset) if self._stock.by_row else None
        rows = {} if by_row else {reading.dataset.key(row): row for row in range(len(reading.dataset.index))}
        for epoch in count():
            share = reading.share(number, epoch)
            for row, fields in self._by_row(by_row, share) if by_row else self._streamed(rows, share):
                yield row, epoch, fields

    def _by_row(self, samples: ByRow, share: ReaderShare) -> Iterator[tuple[int, Fields]]:
        dataset = self._reading.dataset
        for row in map(int, dealt(len(dataset.index), share)):
            try:
                yield row, samples[row]
            except Exception as error:
                path = dataset.folder / text(dataset.index["file"][row])
                what = f"sample {dataset.key(row)!r}: {self._stock.library}: {reason(error)}"
                raise DatasetError(f"{path}: {what}") from error

    def _streamed(self, rows: dict[str, int], share: ReaderShare) -> Iterator[tuple[int, Fields]]:
        assert self._stock.stream is not None
        for key, fields in self._stock.stream(self._reading.dataset, share):
            yield rows[key], fields


class StockLoader:
    """An endless stream of this rank's batches; building it starts the workers."""

    def __init__(self, reading: LoaderInput) -> None:
        reading.check()
        spec, stock = reading.spec, load(STOCK, reading.dataset.manifest.format, STOCK_GROUP)
        self.queue_batches = spec.queue_batches
        self.implementation: str = stock.implementation(reading.kind.name)
        self._counters = shared_counters(reading.readers)
        before = {child.pid for child in psutil.Process().children()}
        self._iterator: Iterator[Batch] = iter(
            DataLoader(
                _Worker(reading, stock, self._counters),
                batch_size=None,
                num_workers=spec.num_workers,
                prefetch_factor=spec.prefetch_factor if spec.num_workers else None,
                pin_memory=spec.pin_memory and torch.cuda.is_available(),
                multiprocessing_context="fork" if spec.num_workers else None,
                collate_fn=_as_it_is,  # collated in the worker's dataset, where it is timed
            )
        )
        self._workers = [child for child in psutil.Process().children() if child.pid not in before]
        self._failure: DatasetError | None = None

    def __next__(self) -> Delivered:
        if self._failure is not None:
            raise self._failure
        try:
            return Delivered(*next(self._iterator))
        except DatasetError as error:
            self._failure = error
            raise

    def counts(self) -> ReaderCounts:
        """What the readers have done so far."""
        return counted(self._counters)

    def io(self) -> ProcessIO | None:
        """The counters of the workers, or of this process where it reads itself."""
        return processes_io([worker.pid for worker in self._workers] or [os.getpid()])

    def close(self) -> None:
        """Stop the workers."""
        if self._workers:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # an exception may keep the iterator alive
        self._iterator, self._workers, self._failure = iter(()), [], None


def _as_it_is(batch: Any) -> Any:
    return batch
