"""Run a trial's blocks of steps: the real loader, interleaved with the ceiling where that is not known."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist
from torch import Tensor

from benchsuite.blocks import LOADER_BLOCKS, SETTLING_STEPS, Layout
from benchsuite.clock import Clock, StepTimes
from benchsuite.emulated import EmulatedDevice
from benchsuite.observe import Observer
from benchsuite.ranks import Block, Heartbeat, Reads
from storage.format import Dataset
from storage.iostat import ProcessIO, mount_io
from storage.loaders import Batch, LoaderProtocol, ReaderCounts

FILL_TIMEOUT_S = 30.0
"""How long a ceiling block waits for the readers to fill the queue and rest."""


class Steps(Protocol):
    """What takes steps: a model in training, or an emulated device. The loss is None where there is none."""

    @property
    def step(self) -> Callable[[Batch, Any], Tensor | None]: ...


class TrialError(RuntimeError):
    """Training went wrong in a way that has a plain reason."""


@dataclass
class Stepper:
    """Runs steps, counts them, and keeps the loss finite."""

    training: Steps
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
    observer: Observer | None = None
    consumed_batches: int = 0
    rows: list[int] = field(default_factory=list)
    """Index rows of the samples taken since the list was last cleared."""
    began: ReaderCounts | None = None
    """What the readers had done when the queue last began to be emptied."""

    def __call__(self) -> Batch:
        """The next batch."""
        delivered = next(self.loader)
        self.consumed_batches += 1
        self.rows += delivered.rows
        return delivered.batch

    def io_profile(self) -> dict[str, Any] | None:
        """What was seen of the readers' I/O so far, if it is watched; ends the watch."""
        return self.observer.finish(self.loader.counts().stored_bytes) if self.observer else None

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


def barrier() -> None:
    """Meet the other ranks, if there are any."""
    if dist.is_initialized():
        dist.barrier()


def plain_block(stepper: Stepper, batch: Batch, steps: int, kind: str = "plain", queue_full: bool = True) -> Block:
    """Steps on one batch that is in memory.

    Counted from the end of an uncounted step: ranks that exchange end one together, and begin a block one by one.
    """
    barrier()
    times = stepper.run(lambda: batch, SETTLING_STEPS + steps).after(SETTLING_STEPS)
    barrier()  # what a rank does next would take cores from those that still take their last step
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


def loader_block(
    stepper: Stepper, feed: Feed, drained: int, steps: int, next_batch: Callable[[], Batch] | None = None
) -> Block:
    """Steps on the loader's batches, which `next_batch` takes: the first `drained` ones only empty the queue."""
    next_batch = next_batch or feed
    barrier()
    began = feed.began = feed.loader.counts() if drained or feed.began is None else feed.began
    uncounted = stepper.run(next_batch, drained).step_s() if drained else []
    feed.rows.clear()
    before = feed.loader.counts()
    times = stepper.run(next_batch, steps)
    after = feed.loader.counts()
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
        read_s=after.read_s - before.read_s,
        read_cpu_s=_difference(before.read_cpu_s, after.read_cpu_s),
        decode_s=after.decode_s - before.decode_s,
        readers=after.readers,
        paced_samples=after.samples - began.samples,
        paced_s=_needed_s(began, after) if feed.loader.queue_batches else None,
        uncounted_step_s=uncounted,
    )


def _needed_s(before: ReaderCounts, after: ReaderCounts) -> float | None:
    known = before.needed_s is not None and after.needed_s is not None
    return after.needed_s - before.needed_s if known else None  # type: ignore[operator]


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _grown(before: ProcessIO | None, after: ProcessIO | None) -> ProcessIO | None:
    if before is None or after is None:
        return None
    return ProcessIO(after.read_call_bytes - before.read_call_bytes, after.storage_bytes - before.storage_bytes)


def reconciled(feed: Feed, folder: Path | None, run: Callable[[], list[Block]]) -> tuple[list[Block], Reads]:
    """Run blocks; what this rank's readers read meanwhile and, where `folder` is given, all that its mount did.

    The mount's counter is read before all ranks start and after all have ended, so that it misses nothing of theirs.
    """
    mount_before = mount_io(folder) if folder else None
    barrier()
    before, produced = feed.loader.io(), feed.loader.counts().stored_bytes
    blocks = run()
    processes = _grown(before, feed.loader.io())
    produced = feed.loader.counts().stored_bytes - produced
    barrier()
    mount_after = mount_io(folder) if folder else None
    mount = None
    if mount_before and mount_after and mount_before.source == mount_after.source:
        mount = replace(mount_after, read_bytes=mount_after.read_bytes - mount_before.read_bytes)
    return blocks, Reads(
        processes.read_call_bytes if processes else None,
        processes.storage_bytes if processes else None,
        produced,
        mount.source if mount else None,
        mount.read_bytes if mount else None,
        mount.from_storage if mount else None,
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


def emulated_blocks(stepper: Stepper, feed: Feed, device: EmulatedDevice, plan: Layout) -> list[Block]:
    """L L: what a step needs is known, so the queue is never filled in between."""
    device.feed, device.in_line = feed, not feed.loader.queue_batches
    blocks = []
    for drained in (plan.drained_steps, *[0] * (LOADER_BLOCKS - 1)):
        block = loader_block(stepper, feed, drained, plan.loader_steps, device.next_batch)
        blocks.append(replace(block, late_s=float(np.mean(device.late_s))))
        stepper.heart.au(device.step_s / float(np.mean(block.step_s())))
    return blocks


def _utilization(ceiling: Block, loader: Block) -> float:
    """A first impression for the progress display, of this rank alone."""
    return float(np.mean(ceiling.step_s()) / np.mean(loader.step_s()))
