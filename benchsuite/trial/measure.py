"""Run a trial's blocks of steps: the real loader, interleaved with the ceiling where that is not known."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed as dist

from benchsuite.grid.blocks import LOADER_BLOCKS, Layout
from benchsuite.inside.samples import SETTLING_STEPS, Block, Reads
from benchsuite.results.store.record import MAX_AU
from benchsuite.storage.loaders import Batch
from benchsuite.storage.observe.counters import MountIO
from benchsuite.storage.observe.requests import received_bytes
from benchsuite.trial.bucket import busiest_s
from benchsuite.trial.emulated import EmulatedDevice
from benchsuite.trial.feed import Feed, Stepper

TURNS_OF_A_PACE = 2
"""Turns of all readers in which a block sees how quick they are."""


def barrier() -> None:
    """Meet the other ranks, if there are any."""
    if dist.is_initialized():
        dist.barrier()


def of_ranks(value: Any) -> list[Any]:
    """What each rank says, in their order, once all have said it."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def plain_block(stepper: Stepper, batch: Batch, steps: int, kind: str = "plain", queue_full: bool = True) -> Block:
    """Steps on one batch that is in memory.

    Counted from the end of an uncounted step: ranks that exchange end one together, and begin a block one by one.
    """
    barrier()
    with stepper.seen.counting() if kind == "plain" else nullcontext():
        times = stepper.run(lambda: batch, SETTLING_STEPS + steps).after(SETTLING_STEPS)
    barrier()  # what a rank does next would take cores from those that still take their last step
    rows = len(next(iter(batch.values())))
    return replace(times, kind=kind, consumed_samples=rows * steps, queue_full=queue_full)


def loader_block(
    stepper: Stepper, feed: Feed, drained: int, steps: int, next_batch: Callable[[], Batch] | None = None
) -> Block:
    """Steps on the loader's batches, which `next_batch` takes: the first `drained` ones only empty the queue."""
    next_batch = next_batch or feed
    barrier()
    began = feed.loader.counts()
    if not drained and feed.began is not None and steps < TURNS_OF_A_PACE * began.readers:
        began = feed.began  # too few batches for a pace of their own
    feed.began = began
    uncounted = stepper.run(next_batch, drained).step_s() if drained else []
    feed.rows.clear()
    before, threads = feed.loader.counts(), feed.bucket.thread_s() if feed.bucket else {}
    with stepper.seen.counting():
        times = stepper.run(next_batch, steps)
    after, client_s = feed.loader.counts(), busiest_s(threads, feed.bucket.thread_s()) if feed.bucket else None
    return replace(
        times,
        kind="loader",
        consumed_samples=len(feed.rows),
        consumed_bytes=int(feed.dataset.index["bytes"][feed.rows].sum()),
        produced_samples=after.samples - before.samples,
        produced_bytes=after.stored_bytes - before.stored_bytes,
        read_s=after.read_s - before.read_s,
        read_cpu_s=_difference(before.read_cpu_s, after.read_cpu_s),
        decode_s=after.decode_s - before.decode_s,
        collate_s=None if after.collate_s is None else after.collate_s - (before.collate_s or 0.0),
        unpack_s=None if after.unpack_s is None else after.unpack_s - (before.unpack_s or 0.0),
        readers=after.readers,
        paced_samples=after.samples - began.samples,
        paced_s=_difference(began.needed_s, after.needed_s) if feed.loader.queue_batches else None,
        uncounted_step_s=uncounted,
        client_thread_s=client_s,
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def reconciled(
    feed: Feed, counter: Callable[[], MountIO | None], run: Callable[[], list[Block]]
) -> tuple[list[Block], Reads]:
    """Run blocks; what this rank's readers read meanwhile, and all that its mount or interface did.

    That `counter` is read before all ranks start and after all have ended, so that it misses nothing of theirs.
    """
    mount_before = counter()
    barrier()
    asked = feed.bucket.begin() if feed.bucket else None
    before, produced = feed.loader.io(), feed.loader.counts().stored_bytes
    blocks = run()
    after = feed.loader.io()
    processes = after.grown(before) if after and before else None
    produced = feed.loader.counts().stored_bytes - produced
    requests = asked() if asked else None
    barrier()
    mount_after = counter()
    mount = None
    if mount_before and mount_after and mount_before.source == mount_after.source:
        mount = replace(mount_after, read_bytes=mount_after.read_bytes - mount_before.read_bytes)
    received = None if requests is None else received_bytes(requests)
    processes = None if feed.bucket else processes  # what comes by sockets is no read of a file
    return blocks, Reads(
        received if received is not None else processes.read_bytes if processes else None,
        received if received is not None else processes.storage_bytes if processes else None,
        produced,
        mount.source if mount else None,
        mount.read_bytes if mount else None,
        mount.from_storage if mount else None,
        requests=requests,
    )


def interleaved_blocks(
    stepper: Stepper, feed: Feed, batch: Batch, plan: Layout, extra: int = 0, prepare_more: Callable[[], None] = barrier
) -> list[Block]:
    """C L C L C: what the machine does besides changes over minutes, so neighbours are compared.

    While AU is above 1 by more than its noise, a pair L C is added, at most `extra` of them. All blocks count.
    """
    blocks = [_ceiling_block(stepper, feed, batch, plan)]
    for number in range(LOADER_BLOCKS + extra):
        if number >= LOADER_BLOCKS:
            if not _is_above_one(blocks):
                break
            if number == LOADER_BLOCKS:
                prepare_more()
            stepper.heart.more(plan.pair_batches + SETTLING_STEPS + plan.ceiling_steps)
        blocks.append(loader_block(stepper, feed, plan.drained_steps, plan.loader_steps))
        stepper.heart.au(_utilization(blocks[-2], blocks[-1]))
        blocks.append(_ceiling_block(stepper, feed, batch, plan))
    return blocks


def _ceiling_block(stepper: Stepper, feed: Feed, batch: Batch, plan: Layout) -> Block:
    """Steps on a batch in memory while the readers rest."""
    full = feed.wait_full()
    return plain_block(stepper, batch, plan.ceiling_steps, "ceiling", full)


def _is_above_one(blocks: list[Block]) -> bool:
    """Whether steps with their input in memory are slower than with the loader, by the slowest rank of each.

    What the queue lost is not taken off here: that lets a pair be added where none was needed, and never hides one.
    """

    def step_s(kind: str) -> float:
        own = [(block.end_s - block.start_s) / block.num_steps for block in blocks if block.kind == kind]
        return float(max(of_ranks(float(np.mean(own)))))

    return step_s("ceiling") > MAX_AU * step_s("loader")


def emulated_blocks(stepper: Stepper, feed: Feed, device: EmulatedDevice, plan: Layout) -> list[Block]:
    """L L: what a step needs is known, so the queue is never filled in between."""
    device.feed, device.in_line = feed, not feed.loader.queue_batches
    blocks = []
    for drained in (plan.drained_steps, *[0] * (LOADER_BLOCKS - 1)):
        block = loader_block(stepper, feed, drained, plan.loader_steps, device.next_batch)
        blocks.append(replace(block, late_s=float(np.mean(device.late_s))))
        stepper.heart.au(device.step_s / float(np.mean(block.step_s())))
    return blocks


def rest_of_epoch(stepper: Stepper, feed: Feed, device: EmulatedDevice, steps: int) -> Block:
    """The steps after those that count, to the end of an epoch; the last ones find their batches in the queue."""
    stepper.heart.more(steps)
    return replace(loader_block(stepper, feed, 0, steps, device.next_batch), kind="rest")


def _utilization(ceiling: Block, loader: Block) -> float:
    """A first impression for the progress display, of this rank alone."""
    return float(np.mean(ceiling.step_s()) / np.mean(loader.step_s()))
