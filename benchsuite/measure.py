"""Run a trial's blocks of steps: the ceiling with its input in memory, interleaved with the real loader."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist

from benchsuite.blocks import LOADER_BLOCKS, SETTLING_STEPS, Layout
from benchsuite.clock import Clock, StepTimes
from benchsuite.ranks import Block, Heartbeat
from storage.format import Dataset
from storage.loaders import Batch, LoaderProtocol
from workloads.parallel.apply import Training

FILL_TIMEOUT_S = 30.0
"""How long a ceiling block waits for the readers to fill the queue and rest."""


class TrialError(RuntimeError):
    """Training went wrong in a way that has a plain reason."""


@dataclass
class Stepper:
    """Runs steps, counts them, and keeps the loss finite."""

    training: Training
    clock: Clock
    heart: Heartbeat
    steps_s: float = 0.0
    num_steps: int = 0
    loss: float | None = None

    def run(self, next_batch: Callable[[], Batch], steps: int) -> StepTimes:
        """Time `steps` steps.

        Raises:
            TrialError: the loss is not finite.
        """
        clock, step, heart = self.clock, self.training.step, self.heart
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
        return times


@dataclass
class Feed:
    """The real pipeline of one rank, and what was taken from it."""

    loader: LoaderProtocol
    dataset: Dataset
    batch_size: int
    consumed_batches: int = 0
    rows: list[int] = field(default_factory=list)
    """Index rows of the samples taken since the list was last cleared."""

    def __call__(self) -> Batch:
        """The next batch."""
        delivered = next(self.loader)
        self.consumed_batches += 1
        self.rows += delivered.rows
        return delivered.batch

    def wait_full(self) -> bool:
        """Wait until the readers have filled the queue and rest; False when they have not in time, or one failed."""
        wanted = (self.consumed_batches + self.loader.queue_batches) * self.batch_size
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while (counts := self.loader.counts()).samples < wanted:
            if counts.failed or time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


def barrier() -> None:
    """Meet the other ranks, if there are any."""
    if dist.is_initialized():
        dist.barrier()


def plain_block(stepper: Stepper, batch: Batch, steps: int, kind: str = "plain", queue_full: bool = True) -> Block:
    """Steps on one batch that is in memory."""
    barrier()
    stepper.run(lambda: batch, SETTLING_STEPS)
    times = stepper.run(lambda: batch, steps)
    rows = len(next(iter(batch.values())))
    return Block(
        kind,
        times.start_s,
        times.end_s,
        times.parts,
        times.run_queue_s,
        consumed_samples=rows * steps,
        queue_full=queue_full,
    )


def loader_block(stepper: Stepper, feed: Feed, drained: int, steps: int) -> Block:
    """Steps on the loader's batches: the first `drained` ones only empty the queue."""
    barrier()
    stepper.run(feed, drained)
    feed.rows.clear()
    storage_before = feed.loader.storage_bytes()
    before = feed.loader.counts()
    times = stepper.run(feed, steps)
    after = feed.loader.counts()
    storage_after = feed.loader.storage_bytes()
    known = storage_before is not None and storage_after is not None
    return Block(
        "loader",
        times.start_s,
        times.end_s,
        times.parts,
        times.run_queue_s,
        consumed_samples=len(feed.rows),
        consumed_bytes=int(feed.dataset.index["bytes"][feed.rows].sum()),
        produced_samples=after.samples - before.samples,
        produced_bytes=after.stored_bytes - before.stored_bytes,
        storage_bytes=storage_after - storage_before if known else None,  # type: ignore[operator]
        read_s=after.read_s - before.read_s,
        decode_s=after.decode_s - before.decode_s,
    )


def interleaved_blocks(stepper: Stepper, feed: Feed, batch: Batch, plan: Layout) -> list[Block]:
    """C L C L C: what the machine does besides changes over minutes, so neighbours are compared."""
    blocks = []
    for number in range(LOADER_BLOCKS + 1):
        full = feed.wait_full()
        blocks.append(plain_block(stepper, batch, plan.ceiling_steps, "ceiling", full))
        if number < LOADER_BLOCKS:
            blocks.append(loader_block(stepper, feed, plan.drained_steps, plan.loader_steps))
            stepper.heart.au(_utilization(blocks[-2], blocks[-1]))
    return blocks


def _utilization(ceiling: Block, loader: Block) -> float:
    """A first impression for the progress display, of this rank alone."""
    return float(np.mean(ceiling.step_s()) / np.mean(loader.step_s()))
