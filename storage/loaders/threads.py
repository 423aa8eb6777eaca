"""Loader `threads`: a thread per reader in the training process.

Reading (preadv, h5py) and decoding (libjpeg-turbo, torch, numpy's copies) release Python's lock, so threads run beside
each other; batches are decoded straight into the memory that the training step gets, page-locked where there is CUDA,
and used again once the step is done with it. h5py lets one thread at a time into the library.
"""

import os
import queue
import threading
from typing import Any

import numpy as np
import torch

from benchsuite.inside.processes import ProcessIO, process_io
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.storage.loaders.reader import (
    NUM_COUNTERS,
    Copies,
    Filled,
    LoaderInput,
    Reader,
    Slot,
    counted,
)

CLOSE_TIMEOUT_S = 5.0


class _Line:
    """One reader's thread and its queue of filled batches."""

    def __init__(self, reader: Reader, prefetch: int) -> None:
        self.reader = reader
        self.credits = threading.Semaphore(prefetch)
        self.filled: queue.SimpleQueue[tuple[int, Filled] | BaseException] = queue.SimpleQueue()


class ThreadsLoader:
    """An endless stream of this rank's batches; building it starts the threads."""

    def __init__(self, reading: LoaderInput) -> None:
        reading.check()
        spec = reading.spec
        self.copies, self._cuda_device = Copies(reading.cuda_device), reading.cuda_device
        self.queue_batches = spec.queue_batches
        self._counters = np.zeros((reading.readers, NUM_COUNTERS))
        num_slots = spec.queue_batches + 2  # those queued, the one being used, and the one before it
        self._slots = [Slot.empty(reading) for _ in range(num_slots)]
        self._free: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for number in range(len(self._slots)):
            self._free.put((number, None))
        readers = [Reader(reading, number, self._counters[number]) for number in range(reading.readers)]
        self._lines = [_Line(reader, spec.prefetch_factor) for reader in readers]
        self._turn, self._held, self._closed = 0, -1, False
        self._failure: BaseException | None = None
        self._threads = self._start() if spec.num_workers else []

    def _start(self) -> list[threading.Thread]:
        """Start the threads, each computing with one core; the training's own number of threads stays."""
        training_threads = torch.get_num_threads()
        ready = threading.Barrier(len(self._lines) + 1)
        threads = [
            threading.Thread(target=self._run, args=(line, ready), daemon=True, name=f"reader-{number}")
            for number, line in enumerate(self._lines)
        ]
        for thread in threads:
            thread.start()
        ready.wait()
        torch.set_num_threads(training_threads)
        return threads

    def _run(self, line: _Line, ready: threading.Barrier) -> None:
        torch.get_num_threads()  # else torch's first use in this thread takes over the training's number
        torch.set_num_threads(1)
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)  # waiting for an event would else make a context on device 0
        ready.wait()
        while not self._closed:
            line.credits.acquire()
            if not self._fill(line):
                return

    def _fill(self, line: _Line) -> bool:
        """Put the line's next batch into its queue, or why there is none; whether there may be more."""
        try:
            slot = self._free_slot()
            if not self._closed:
                line.filled.put((slot, line.reader.fill(self._slots[slot])))
            return True
        except BaseException as error:
            line.filled.put(error)
            return False

    def _free_slot(self) -> int:
        """The longest free slot, once nothing on the device still reads from it."""
        slot, copied = self._free.get()
        if copied is not None:
            copied.synchronize()
        return slot

    def __next__(self) -> Delivered:
        if self._closed:
            raise StopIteration
        if self._failure is not None:
            raise self._failure
        if self._held >= 0:
            self._free.put((self._held, self.copies.done()))
        line = self._lines[self._turn]
        self._turn = (self._turn + 1) % len(self._lines)
        if not self._threads:
            self._fill(line)
        item = line.filled.get()
        if isinstance(item, BaseException):
            self._failure = item
            raise item
        line.credits.release()
        self._held, (rows, epochs) = item
        return Delivered(self._slots[self._held].batch, rows, epochs)

    def counts(self) -> ReaderCounts:
        """What the readers have done so far."""
        return counted(self._counters)

    def io(self) -> ProcessIO | None:
        """This process's counters: its threads read."""
        return process_io(os.getpid())

    def reading(self) -> tuple[list[int], list[int]]:
        """The reading threads."""
        return [], [thread.native_id for thread in self._threads if thread.native_id is not None]

    def close(self) -> None:
        """Stop the threads."""
        self._closed = True
        for line in self._lines:
            line.credits.release()
            self._free.put((0, None))
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)
        if not any(thread.is_alive() for thread in self._threads):
            for line in self._lines:
                line.reader.close()
        self._threads = []
