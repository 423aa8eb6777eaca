"""Loader `torch`: PyTorch's DataLoader with worker processes, or reading in the training process without any.

Workers decode into batches that lie in memory shared with the training process and are used again and again: only the
number of a batch travels through the DataLoader's queue. Its sampler hands out the batches that are free, so no more
than (workers x prefetch + 2) exist.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, get_worker_info
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.storage.loaders.reader import (
    Copies,
    LoaderInput,
    Reader,
    Slot,
    counted,
    private_slots,
    shared_counters,
    shared_slots,
)
from benchsuite.storage.observe.counters import ProcessIO, processes_io

Ready = tuple[int, list[int], list[int]]
"""Number of a filled slot, rows of the index, epochs."""


class _Batches(TorchDataset[Ready]):
    """Item `slot` is that slot filled with the next samples of the asking worker."""

    def __init__(self, reading: LoaderInput, slots: list[Slot], counters: npt.NDArray[np.float64]) -> None:
        self._reading, self._slots, self._counters = reading, slots, counters
        self._reader: Reader | None = None

    def __getitem__(self, slot: int) -> Ready:
        if self._reader is None:
            info = get_worker_info()
            number = info.id if info else 0
            self._reader = Reader(self._reading, number, self._counters[number])
        return (slot, *self._reader.fill(self._slots[slot]))

    def close(self) -> None:
        """Close what this process has open."""
        if self._reader is not None:
            self._reader.close()


class _FreeSlots(Sampler[int]):
    """Hands out free slots, the longest free first; waits until nothing on the device still reads from one."""

    def __init__(self, number: int) -> None:
        self.free: deque[tuple[int, Any]] = deque((slot, None) for slot in range(number))

    def __iter__(self) -> Iterator[int]:
        while True:
            slot, copied = self.free.popleft()
            if copied is not None:
                copied.synchronize()
            yield slot


class TorchLoader:
    """An endless stream of this rank's batches; building it starts the workers."""

    def __init__(self, reading: LoaderInput) -> None:
        reading.check()
        spec = reading.spec
        self.copies = Copies(reading.cuda_device)
        self.queue_batches = spec.queue_batches
        self._counters = shared_counters(reading.readers)
        self._pinned: Tensor | None = None
        memory = None
        if spec.num_workers:
            self._slots, memory = shared_slots(reading)
        else:
            self._slots = private_slots(reading, reading.pin_memory)
        self._free = _FreeSlots(len(self._slots))
        self._held: int | None = None
        self._failure: DatasetError | None = None
        before = {child.pid for child in psutil.Process().children()}
        self._batches = _Batches(reading, self._slots, self._counters)
        self._iterator = self._start(self._batches, spec)
        self._workers = [child for child in psutil.Process().children() if child.pid not in before]
        if memory is not None and reading.pin_memory and _page_lock(memory):
            self._pinned = memory
        self.page_locked = self._pinned is not None if memory is not None and reading.pin_memory else None
        """Whether CUDA let the workers' memory be page-locked; None where that is not asked for."""

    def _start(self, batches: _Batches, spec: DataSpec) -> Iterator[Ready]:
        loader: DataLoader[Ready] = DataLoader(
            batches,
            batch_size=None,
            sampler=self._free,
            num_workers=spec.num_workers,
            prefetch_factor=spec.prefetch_factor if spec.num_workers else None,
            persistent_workers=spec.num_workers > 0,
            collate_fn=_as_it_is,
            multiprocessing_context="fork" if spec.num_workers else None,
        )
        return iter(loader)

    def __next__(self) -> Delivered:
        if self._failure is not None:
            raise self._failure
        if self._held is not None:
            self._free.free.append((self._held, self.copies.done()))
        try:
            self._held, rows, epochs = next(self._iterator)
        except DatasetError as error:
            self._failure = error
            raise
        return Delivered(self._slots[self._held].batch, rows, epochs)

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
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.data_ptr())  # type: ignore[no-untyped-call]
            self._pinned = None
        self._batches.close()
        self._iterator, self._failure = iter(()), None
        self._workers = []


def _as_it_is(ready: Any) -> Any:
    return ready


def _page_lock(memory: Tensor) -> bool:
    """Page-lock shared memory in place, so that copies to the device need no staging; False where CUDA refuses."""
    result = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(result) == 0:
        return True
    with suppress(RuntimeError):  # CUDA keeps the refusal, and the next kernel would raise it as its own
        torch.zeros(1, device="cuda")
    return False
