"""Loader `torch`: PyTorch's DataLoader with worker processes, or reading in the training process without any.

The stream never ends and drops nothing: each of ranks x workers readers goes through its lane of an epoch and on into
the next, so batches may straddle epochs, every epoch holds each sample exactly once over all readers, and all ranks
take equally many steps.
"""

import mmap
import os
import time
from collections.abc import Iterator, Mapping
from itertools import count, islice

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from storage import FORMATS, load
from storage.format import Dataset, DatasetError, Format, Lane
from storage.iostat import process_io
from storage.kinds import Kind, sample_rng
from storage.loaders import Batch, Delivered, ReaderCounts
from storage.spec import DataSpec

_COUNTERS = 4  # samples, stored bytes, read seconds, decode seconds


def _shared_counters(rows: int) -> npt.NDArray[np.float64]:
    """Counters that forked workers write and the training process reads."""
    return np.frombuffer(mmap.mmap(-1, rows * _COUNTERS * 8), dtype=np.float64).reshape(rows, _COUNTERS)


class _Batches(IterableDataset[Delivered]):
    """The endless stream of one rank's batches, split over workers."""

    def __init__(
        self,
        dataset: Dataset,
        spec: DataSpec,
        kind: Kind,
        params: Mapping[str, int],
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        self.dataset, self.spec, self.kind, self.params = dataset, spec, kind, params
        self.batch_size, self.rank, self.world_size, self.seed = batch_size, rank, world_size, seed
        self.format: Format = load(FORMATS, dataset.manifest.format, "benchsuite.formats")
        self.readers = max(1, spec.num_workers)
        self.counters = _shared_counters(self.readers)

    def __iter__(self) -> Iterator[Delivered]:
        info = get_worker_info()
        samples = self._samples(info.id if info else 0)
        while True:
            pending = list(islice(samples, self.batch_size))
            decoded, rows, epochs = zip(*pending, strict=True)
            yield Delivered(default_collate(list(decoded)), list(rows), list(epochs))

    def _samples(self, worker: int) -> Iterator[tuple[Batch, int, int]]:
        """Decoded samples of this worker's lane, epoch after epoch, with what they cost counted."""
        counters = self.counters[worker]
        lane = self.rank * self.readers + worker
        for epoch in count():
            spec = self.spec
            share = Lane(lane, self.world_size * self.readers, epoch, self.seed, spec.shuffle, spec.shuffle_buffer)
            started = time.perf_counter()
            for sample in self.format.read(self.dataset, share):
                read = time.perf_counter()
                decoded = self.kind.decode(sample, self.params, sample_rng(self.seed, epoch, sample.key))
                done = time.perf_counter()
                counters += (1, sample.stored_bytes, read - started, done - read)
                yield decoded, sample.index, epoch
                started = time.perf_counter()


class TorchLoader:
    """An endless stream of this rank's batches; building it starts the workers."""

    def __init__(
        self,
        dataset: Dataset,
        spec: DataSpec,
        kind: Kind,
        params: Mapping[str, int],
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        batches = _Batches(dataset, spec, kind, params, batch_size, rank, world_size, seed)
        trouble = batches.format.problem(dataset.manifest, world_size * batches.readers)
        if trouble:
            raise DatasetError(f"{dataset.folder}: {trouble}")
        self.queue_batches = spec.queue_batches
        self._counters = batches.counters
        before = {child.pid for child in psutil.Process().children()}
        loader: DataLoader[Delivered] = DataLoader(
            batches,
            batch_size=None,
            num_workers=spec.num_workers,
            prefetch_factor=spec.prefetch_factor if spec.num_workers else None,
            pin_memory=spec.pin_memory and torch.accelerator.is_available(),
            multiprocessing_context="fork" if spec.num_workers else None,
        )
        self._iterator: Iterator[Delivered] = iter(loader)
        self._workers = [child for child in psutil.Process().children() if child.pid not in before]

    def __next__(self) -> Delivered:
        return next(self._iterator)

    def counts(self) -> ReaderCounts:
        """What the readers have done so far."""
        samples, stored, read_s, decode_s = self._counters.sum(axis=0)
        return ReaderCounts(int(samples), int(stored), float(read_s), float(decode_s))

    def storage_bytes(self) -> int | None:
        """What the kernel has fetched for the workers, or for this process where it reads itself."""
        pids = [worker.pid for worker in self._workers] or [os.getpid()]
        known = [counter.storage_bytes for counter in map(process_io, pids) if counter is not None]
        return sum(known) if len(known) == len(pids) else None

    def close(self) -> None:
        """Stop the workers."""
        if self._workers:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]  # an exception may keep the iterator alive
        self._iterator = iter(())
        self._workers = []
