"""A trial's batches and steps: the feed of its loader, and the stepper of its model."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchsuite.contract.rank_samples import Heartbeat
from benchsuite.inside.samples import Block
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.loaders import Batch, LoaderProtocol, ReaderCounts
from benchsuite.storage.observe.io_trace import Tracer
from benchsuite.trial.bucket import BucketWatch
from benchsuite.trial.clock import Clock
from benchsuite.trial.emulated import EmulatedDevice
from benchsuite.trial.seen import Seen
from benchsuite.trial.strace import Strace
from benchsuite.workloads.parallel.step import Training


class TrialError(RuntimeError):
    """Training went wrong in a way that has a plain reason."""


@dataclass
class Stepper:
    """Runs steps, counts them, and keeps the loss finite."""

    training: Training | EmulatedDevice
    clock: Clock
    heart: Heartbeat
    count: Callable[[], Callable[[], dict[str, float]]] = lambda: dict
    """Begins to count what the device counts; what it returns ends that."""
    seen: Seen = field(default_factory=Seen)
    """Sees the rank while its steps count."""
    steps_s: float = 0.0
    num_steps: int = 0
    loss: float | None = None

    def run(self, next_batch: Callable[[], Batch], steps: int) -> Block:
        """Time `steps` steps.

        Raises:
            TrialError: the loss is not finite.
        """
        clock, step, heart = self.clock, self.training.step, self.heart
        counted = self.count()
        clock.start()
        for _ in range(steps):
            batch = next_batch()
            clock.mark("load")
            loss = step(batch, clock)
            heart.step()
        times = clock.stop()
        self.steps_s += times.end_s - times.start_s
        self.num_steps += steps
        self.loss = None if loss is None else float(loss)
        if self.loss is not None and not np.isfinite(self.loss):
            raise TrialError(f"loss is {self.loss} after {self.num_steps} steps")
        return replace(times, counted=counted())


@dataclass
class Feed:
    """The real pipeline of one rank, and what was taken from it."""

    loader: LoaderProtocol
    dataset: Dataset
    batch_size: int
    observer: Tracer | Strace | None = None
    consumed_batches: int = 0
    rows: list[int] = field(default_factory=list)
    """Index rows of the samples taken since the list was last cleared."""
    bucket: BucketWatch | None = None
    """The watch over the readers' client, where they read a bucket."""
    began: ReaderCounts | None = None
    """What the readers had done when the queue last began to be emptied."""
    seen: Seen | None = None
    """Is told when the step waits for its batch."""

    def __call__(self) -> Batch:
        """The next batch."""
        with nullcontext() if self.seen is None else self.seen.loading():
            delivered = next(self.loader)
        self.consumed_batches += 1
        self.rows += delivered.rows
        return delivered.batch

    def io_profile(self) -> dict[str, Any] | None:
        """What was seen of the readers' I/O so far, if it is watched; ends the watch."""
        if self.observer is None:
            return None
        found = self.observer.finish(self.loader.counts().stored_bytes)
        requests = self.bucket.so_far() if self.bucket else None
        return found if requests is None else found | {"requests": requests}

    def close(self) -> None:
        """Stop the readers, and watching them."""
        self.loader.close()
        if self.observer:
            self.observer.stop()

    def wait_full(self) -> bool:
        """Wait until the readers have filled the queue and rest; False when they have not in time, or one failed."""
        wanted = (self.consumed_batches + self.loader.queue_batches) * self.batch_size
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while (counts := self.loader.counts()).samples < wanted:
            if counts.failed or time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


FILL_TIMEOUT_S = 30.0
"""How long a ceiling block waits for the readers to fill the queue and rest."""
