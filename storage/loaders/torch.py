"""Loader `torch`: PyTorch's DataLoader with its default collate over a dataset as users of a format's library write it.

Each worker reads the same share of every epoch as one of our own readers does. Libraries do not say how long they read
and decode, so the kernel is asked: of each batch's time, what the worker's thread computed in user mode is preparing;
the rest, without the wait for a core, is fetching: waiting for storage, and the kernel's copying.
"""

import os
import random
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._C import _error_if_any_worker_fails  # what the DataLoader itself asks
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from benchsuite.inside.processes import ProcessIO, children, processes_io
from benchsuite.storage import LIBRARIES, load, stock_reader
from benchsuite.storage.dataset.fields import KIND_FIELDS, LIMITS, limit_of
from benchsuite.storage.dataset.kinds import decode_one, sample_rng
from benchsuite.storage.dataset.manifest import dealt, file_digest, text
from benchsuite.storage.dataset.sample import Sample, Value
from benchsuite.storage.errors import DatasetError, reason
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.storage.loaders.reader import LoaderInput, RunQueue, check_class, counted, shared_counters
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import without_credentials
from benchsuite.storage.observe.io_trace import observed
from benchsuite.storage.stock.reader import ByRow, Fields, Stock, ready

Batch = tuple[dict[str, torch.Tensor], list[int], list[int]]
"""Tensors as collated, rows of the index, epochs."""
Prepared = tuple[int, int, dict[str, torch.Tensor]]
"""Row of the index, epoch and tensors of a sample."""


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
        index = reading.dataset.index
        self._keys, self._sizes, self._labels = index["key"], index["bytes"], index["label"]
        limits = [] if self._augments else [(name, limit_of(name, reading.params)) for name in LIMITS]
        self._limits = [(name, limit) for name, limit in limits if limit is not None]
        self._unpack_s = 0.0

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        number = info.id if info else 0
        try:
            yield from self._batches(number)
        except Exception as error:
            self._counters[number][-1] += 1
            if isinstance(error, DatasetError):
                raise
            raise self._told(str(self._reading.dataset.folder), error) from self._cause(error)

    def _batches(self, number: int) -> Iterator[Batch]:
        samples, counters, queue = self._samples(number), self._counters[number], RunQueue()
        while True:
            yield observed(lambda: self._batch(samples, counters, queue))

    def _batch(self, samples: Iterator[Prepared], counters: Any, queue: RunQueue) -> Batch:
        began_s, times = time.perf_counter(), _Times(queue)
        rows, epochs, tensors = zip(*islice(samples, self._reading.batch_size), strict=True)
        collating_s = time.thread_time()
        batch = default_collate(list(tensors))
        collate_s = time.thread_time() - collating_s
        self._check(rows, batch)
        stored = sum(map(self._sizes.item, rows))
        fetch_s, prepare_s, kernel_s = times.since()
        unpack_s, self._unpack_s = self._unpack_s, 0.0
        needed_s = time.perf_counter() - began_s
        collate_s, unpack_s = min(collate_s, prepare_s), min(unpack_s, prepare_s)
        counters += (len(rows), stored, fetch_s, prepare_s, needed_s, kernel_s, collate_s, unpack_s, 0)
        return batch, list(rows), list(epochs)

    def _check(self, rows: Sequence[int], batch: dict[str, torch.Tensor]) -> None:
        """Refuse what no model may be given: another class than the index has, integers that no table has a row for.

        Raises:
            DatasetError: there is such a sample; file and sample are named.
        """
        manifest, params = self._reading.dataset.manifest, self._reading.params
        if manifest.kind == "image":
            labels, said = batch["label"].numpy(), self._labels[list(rows)]
            if (labels != said).any() or not 0 <= labels.min() <= labels.max() < (manifest.num_classes or np.inf):
                for row, found, known in zip(rows, labels.tolist(), said.tolist(), strict=True):
                    check_class(self._sample(row, {}), found, known, manifest.num_classes)
        elif any(_largest(batch[name]) >= limit for name, limit in self._limits if name in batch):
            for at, row in enumerate(rows):
                fields = {name: each[at].numpy() for name, each in batch.items()}
                decode_one(self._reading.kind, self._sample(row, fields), params, random.Random())

    def _sample(self, row: int, fields: Mapping[str, Value]) -> Sample:
        folder, index = self._reading.dataset.folder, self._reading.dataset.index
        return Sample(text(index["key"][row]), fields, row, str(folder / text(index["file"][row])))

    def _samples(self, number: int) -> Iterator[Prepared]:
        """Row, epoch and tensors of each sample of the worker's share, epoch after epoch."""
        dataset, stock = self._reading.dataset, self._stock
        opened = stock.by_row(dataset) if stock.by_row else None
        rows = {} if opened else {text(key): row for row, key in enumerate(self._keys)}
        for epoch in count():
            share = self._reading.share(number, epoch, unpacked=self._unpacked)
            if opened is not None:
                for row in map(int, dealt(len(self._keys), share)):
                    yield row, epoch, self._by_row(opened, row, epoch)
            elif stock.stream is not None:
                for key, fields in stock.stream(dataset, share):
                    yield rows[key], epoch, self._ready(key, fields, epoch)

    def _unpacked(self, seconds: float) -> None:
        self._unpack_s += seconds

    def _by_row(self, opened: ByRow, row: int, epoch: int) -> dict[str, torch.Tensor]:
        """Read a sample and make it ready; what it was read into is free before the next one is read."""
        fields: Fields = {}
        try:
            fields = opened[row]
            return self._ready(text(self._keys[row]) if self._augments else "", fields, epoch)
        except Exception as error:
            sample, why = self._sample(row, {}), error
            wanted = KIND_FIELDS[self._reading.kind.name]
            if not isinstance(fields, Mapping):
                why = TypeError(f"a sample is a {type(fields).__name__}, needed: a dict of {', '.join(wanted)}")
            elif fields and (lacking := [name for name in wanted if name not in fields]):
                why = TypeError(
                    f"the dict of a sample lacks {', '.join(lacking)}; it has {', '.join(map(str, fields))}"
                )
            raise self._told(f"{sample.source}: sample {sample.key!r}", why) from self._cause(why)

    def _told(self, where: str, error: Exception) -> DatasetError:
        """What a library says, without what a store may have repeated to it."""
        said = reason(error) if self._cause(error) else without_credentials(reason(error))
        return DatasetError(f"{where}: {self._stock.library}: {said}")

    def _cause(self, error: Exception) -> Exception | None:
        """The error, whose text nobody looked through, where no store may have had its say in it."""
        return None if isinstance(self._reading.dataset.folder, ObjectPath) else error

    def _ready(self, key: str, fields: Fields, epoch: int) -> dict[str, torch.Tensor]:
        rng = sample_rng(self._reading.seed, epoch, key) if self._augments else None
        return ready(self._reading.kind, key, fields, self._reading.params, rng)


class TorchLoader:
    """An endless stream of this rank's batches; building it starts the workers."""

    def __init__(self, reading: LoaderInput) -> None:
        reading.check()
        spec, stock = reading.spec, _stock_of(reading)
        self.queue_batches = spec.queue_batches
        self.implementation = _implementation(reading, stock)
        self._counters = shared_counters(reading.readers)
        before = {*children(os.getpid())}
        self._iterator: Iterator[Batch] = iter(
            DataLoader(
                _Worker(reading, stock, self._counters),
                batch_size=None,
                num_workers=spec.num_workers,
                prefetch_factor=spec.prefetch_factor if spec.num_workers else None,
                pin_memory=reading.pin_memory,
                multiprocessing_context="fork" if spec.num_workers else None,
                collate_fn=_as_it_is,  # collated in the worker's dataset, where it is timed
            )
        )
        self._workers = [pid for pid in children(os.getpid()) if pid not in before]
        self._failure: DatasetError | None = None

    def __next__(self) -> Delivered:
        if self._failure is not None:
            raise self._failure
        try:
            return Delivered(*next(self._iterator))
        except DatasetError as error:
            self._failure = error
            raise
        except (EOFError, ConnectionError, FileNotFoundError) as error:  # who was killed hands on nothing of its queue
            _error_if_any_worker_fails()
            raise RuntimeError("a worker of the DataLoader exited unexpectedly, its batches with it") from error
        except RuntimeError as error:
            if isinstance(error.__cause__, RuntimeError):  # says which signal ended the worker, and why it may have
                raise error.__cause__ from None
            raise

    def counts(self) -> ReaderCounts:
        """What the readers have done so far."""
        return counted(self._counters)

    def io(self) -> ProcessIO | None:
        """The counters of the workers, or of this process where it reads itself."""
        return processes_io(self._workers or [os.getpid()])

    def reading(self) -> tuple[list[int], list[int]]:
        """The worker processes."""
        return self._workers, []

    def close(self) -> None:
        """Stop the workers."""
        if self._workers:
            with suppress(RuntimeError):  # torch's handler of SIGCHLD may say only here that a worker was killed
                self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # an exception may keep it alive
        self._iterator, self._workers, self._failure = iter(()), [], None


def _stock_of(reading: LoaderInput) -> Stock:
    """The user's own reader where there is one, else the format's."""
    own, name = reading.own_reader, reading.spec.reader
    if own is None and name is not None and name in LIBRARIES:
        library: Stock = load(LIBRARIES, name)
        return library
    if own is None:
        found: Stock = stock_reader(reading.dataset.manifest.format)
        return found
    return own if isinstance(own, Stock) else Stock(str(name), by_row=own)


def _implementation(reading: LoaderInput, stock: Stock) -> str:
    """The library and its version; of a user's own file also its digest, as it changes under the same name."""
    said = stock.implementation(reading.kind.name, isinstance(reading.dataset.folder, ObjectPath))
    file = Path((reading.spec.reader or "").rpartition(":")[0])
    return f"{said}, {file_digest(file)}" if reading.own_reader is not None and file.is_file() else said


def _largest(integers: torch.Tensor) -> int:
    """The largest as unsigned, where what is negative is above every limit; argmax takes less time than max."""
    words = integers.numpy().view(np.uint64)
    largest: int = words.item(words.argmax())
    return largest


def _as_it_is(batch: Any) -> Any:
    return batch
