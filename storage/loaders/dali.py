"""Loader `dali`: NVIDIA's library reads, decodes and augments, on the GPU where there is one.

A rank is one reader: data.num_workers is the number of DALI's threads (at least 1), data.prefetch_factor the number of
batches it keeps ready; with 0 workers nothing is decoded ahead. In memory are these batches and two, at times one more
that DALI has yet to free.

A thread keeps the pipeline going, so that reading and decoding are not the training step's time.
"""

import os
import queue
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchsuite.inside.processes import ProcessIO, process_io
from benchsuite.storage import LOADERS, loader_problem
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.storage.loaders.dali_pipeline import Pipeline, dali
from benchsuite.storage.loaders.reader import Copies, LoaderInput

CLOSE_TIMEOUT_S = 5.0
GRACE_S = 0.005
"""How long the thread waits for the next request before it waits for DALI. A rank that was served often asks again at
once, and waiting for DALI cannot be interrupted."""


class DaliLoader:
    """An endless stream of this rank's batches; building it starts decoding."""

    def __init__(self, asked: LoaderInput) -> None:
        trouble = loader_problem("dali", asked.kind.name)
        if trouble:
            raise DatasetError(trouble)
        spec, index = asked.spec, asked.dataset.index
        reading = replace(asked, spec=spec.model_copy(update={"num_workers": 1}))
        reading.check()
        self.queue_batches = spec.prefetch_factor if spec.num_workers else 0
        self._copies, self._cuda_device = Copies(reading.cuda_device), reading.cuda_device
        self._index_bytes = index["bytes"]
        self._counts = ReaderCounts(0, 0, 0.0, 0.0)
        try:
            self.implementation = f"DALI {dali('').__version__}"
            """What records name as the reader."""
            self._pipeline = Pipeline(reading, max(1, spec.num_workers), max(1, self.queue_batches))
        except ImportError as error:
            raise DatasetError(f"loader dali: {error}: {LOADERS['dali'].install}") from error
        self._held: Delivered | None = None
        self._used: deque[tuple[Delivered, Any]] = deque()
        self._closed = False
        self._failure: BaseException | None = None
        self._waiting = False
        self._credits = threading.Semaphore(1)  # the first use of a pipeline starts as many batches as it is deep
        self._ready: queue.SimpleQueue[Delivered | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dali") if spec.num_workers else None
        if self._thread:
            self._thread.start()

    def _run(self) -> None:
        """Keep as many batches in flight or ready as were asked for."""
        if self._cuda_device is not None:
            torch.cuda.set_device(self._cuda_device)  # a thread begins with device 0
        try:
            while not self._closed:
                while self._credits.acquire(timeout=self._patience()):
                    if self._closed:
                        return
                    self._pipeline.schedule()
                delivered = self._take()
                self._waiting = False
                self._ready.put(delivered)
        except BaseException as error:
            self._counts = replace(self._counts, failed=True)
            self._ready.put(error)

    def _patience(self) -> float | None:
        """Seconds to wait for a wish for another batch; endless while there is nothing else to do."""
        if not self._pipeline.in_flight:
            return None
        return 0 if self._waiting else GRACE_S

    def _take(self) -> Delivered:
        """Wait for a batch and count it; how long DALI read and how long it decoded, it does not tell."""
        started = time.perf_counter()
        delivered = self._pipeline.take()
        stored, done = int(self._index_bytes[delivered.rows].sum()), self._counts
        self._counts = replace(
            done,
            samples=done.samples + len(delivered.rows),
            stored_bytes=done.stored_bytes + stored,
            decode_s=done.decode_s + time.perf_counter() - started,
        )
        return delivered

    def __next__(self) -> Delivered:
        if self._closed:
            raise StopIteration
        if self._failure is not None:
            raise self._failure
        self._let_go()
        try:
            self._held = self._next()
        except Exception as error:
            self._failure = error
            raise
        return self._held

    def _next(self) -> Delivered:
        if not self._thread:
            self._pipeline.schedule()
            return self._take()
        self._waiting = self._ready.empty()
        self._credits.release()
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _let_go(self) -> None:
        """Free the last batch; where it lies on a device, once the work queued there by now is done."""
        event = self._copies.done()  # the step itself reads a batch that lies there
        if self._held is not None and event is not None:
            self._used.append((self._held, event))
        self._held = None
        while self._used and self._used[0][1].query():
            self._used.popleft()

    def counts(self) -> ReaderCounts:
        """What has been decoded so far; `decode_s` is what the thread waited for DALI, whose threads also read."""
        return self._counts

    def io(self) -> ProcessIO | None:
        """This process's counters: its threads read."""
        return process_io(os.getpid())

    def reading(self) -> tuple[list[int], list[int]]:
        """DALI's threads, by the names that it gives them."""
        names = {
            int(path.parent.name): path.read_text(encoding="utf-8") for path in Path("/proc/self/task").glob("*/comm")
        }
        return [], [thread for thread, name in names.items() if name.startswith(("[DALI]", "PrefetchWorker"))]

    def close(self) -> None:
        """Stop the thread and free the pipeline."""
        if self._closed:
            return
        self._closed = True
        self._credits.release()
        if self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread is None or not self._thread.is_alive():
            self._pipeline.close()
        self._held = None
        self._used.clear()
