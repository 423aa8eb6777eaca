"""What one rank does: stage, evict, load, build, warm up, measure. Read this first."""

import gc
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from benchsuite import storage, workloads
from benchsuite.contract.rank_samples import Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import CEILING_BLOCKS, extra_pairs, layout
from benchsuite.inside.samples import SETTLING_STEPS, Block, RankSamples, Reads
from benchsuite.storage.dataset.kinds import travelling
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.errors import GONE_DATASET, DatasetError, NoDatasetError
from benchsuite.storage.loaders import Batch
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.counters import MountIO, mount_io
from benchsuite.trial import costs, io_observer, page_cache, staging
from benchsuite.trial.afterwards import Trained, keep_and_count
from benchsuite.trial.bucket import BucketWatch, watched
from benchsuite.trial.clock import Clock, clock_for
from benchsuite.trial.counters import Counters
from benchsuite.trial.emulated import EmulatedDevice
from benchsuite.trial.feed import Feed, Stepper
from benchsuite.trial.measure import (
    barrier,
    emulated_blocks,
    interleaved_blocks,
    plain_block,
    reconciled,
    rest_of_epoch,
)
from benchsuite.trial.seen import Seen
from benchsuite.trial.setup import bind, build, devices_of, join, limit_waits, patience_s, rendezvous_of, settle
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.workload import Workload


def run_rank(spec: TrialSpec, folder: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Run one rank of a trial on the dataset in `folder` and return what it measured.

    What must not be destroyed before the process ends is put into `keep`: dropping a DDP model can hang.
    """
    heart = Heartbeat(me.folder, me.rank)
    counters = Counters(spec, me, bind(spec, me))
    device = settle(spec, me)
    rendezvous = rendezvous_of(me, spec.measure.timeout_s)
    bucket = watched(spec)
    dataset = _planned_dataset(folder) if folder is not None and spec.data.source != "synthetic" else None

    heart.phase("stage")
    placed, staged = staging.place(spec, dataset, me, rendezvous, keep)

    heart.phase("warm" if spec.data.cache == "warm" else "evict")
    cached = page_cache.prepare(spec, placed.read_first, me, rendezvous)

    heart.phase("load")
    workload: Workload = workloads.load(workloads.WORKLOADS, spec.workload, "benchsuite.workloads")
    feed, batch, first_batch_s = _first_batch(spec, workload, placed.dataset, me, device)
    _watch(feed, spec, bucket)
    keep.append(feed)
    if spec.layout.needs_group:
        join(rendezvous, me, device, spec)

    heart.phase("build")
    training, clock = _stepping(spec, workload, device, me, feed)
    keep.append(training)
    batch = workload.synthetic(spec.variant_in(workload.variants), spec.rank_batch, device) if batch is None else batch
    gc.collect()  # what building left over is no part of a step
    heart.phase("warmup")
    stepper = Stepper(training, clock, heart, lambda: _begin(counters, spec, me), _seen(feed, device.index))
    heart.total(_total_steps(spec) + io_observer.torch_steps(spec))
    startup_s = time.perf_counter() - me.launched_s
    if not spec.emulated:
        stepper.run(lambda: batch, spec.measure.warmup_steps)

    heart.phase("measure")
    with io_observer.captured(spec), stepper.seen.watching():
        blocks, reads = _measure(spec, stepper, feed, batch, me, placed)
    found = RankSamples(
        me.rank,
        "ok",
        phase="done",
        blocks=blocks,
        peak_memory_bytes=None if spec.emulated else costs.peak_memory(devices_of(spec, me)),
        host_memory_bytes=costs.host_memory(),
        first_batch_s=first_batch_s,
        startup_s=startup_s,
        clock_offset_s=me.clock_offset_s,
        reads=reads,
        **_told(feed, counters, stepper, blocks),
        **costs.of_model(spec, workload, training, batch),
        **(staged | page_cache.found(cached)),
    )
    heart.phase("count")
    found = keep_and_count(found, Trained(spec, workload, stepper, feed, batch, placed.dataset, me))
    heart.phase("done")
    return found


def _begin(counters: Counters, spec: TrialSpec, me: RankIdentity) -> Callable[[], dict[str, float]]:
    """Begin a run of steps, in which ranks wait for each other no longer than the trial has time left for."""
    limit_waits(timedelta(seconds=patience_s(spec, me)))
    return counters.begin()


def _planned_dataset(folder: Path) -> Dataset:
    """Open the dataset of a trial, which was there when the trial was planned."""
    try:
        return open_dataset(folder)
    except NoDatasetError:
        raise DatasetError(f"{folder}: {GONE_DATASET}: removed, or its file system was unmounted") from None


def _watch(feed: Feed | None, spec: TrialSpec, bucket: BucketWatch | None) -> None:
    """Let the watch over requests see the feed's readers, unless they read a staged copy."""
    if feed and spec.data.staging != "copy":
        feed.bucket = bucket


def _seen(feed: Feed | None, device: int | None) -> Seen:
    """What sees this rank, the CUDA device of this number that it computes on, and its readers where it has some."""
    if feed is None:
        return Seen(device=device)
    readers = getattr(feed.loader, "reading", lambda: ((), ()))  # which loaders of others may not have yet
    feed.seen = Seen(readers, device)
    return feed.seen


def _first_batch(
    spec: TrialSpec, workload: Workload, dataset: Dataset | None, me: RankIdentity, device: torch.device
) -> tuple[Feed | None, Batch | None, float | None]:
    """Open the rank's loader: with its first batch, to be trained on again and again, and the seconds until it came."""
    if dataset is None:
        return None, None, None
    opening_s = time.perf_counter()
    feed = _open_feed(spec, workload, dataset, me, device)
    batch = _kept(feed(), spec.data.pin_memory and device.type == "cuda")
    return feed, batch, time.perf_counter() - opening_s


def _told(feed: Feed | None, counters: Counters, stepper: Stepper, blocks: list[Block]) -> dict[str, Any]:
    """What steps, the device and the loader say: its library, what I/O was seen, and what its threads were at."""
    told = {"reader": getattr(feed and feed.loader, "implementation", None)}
    told["io_profile"] = feed.io_profile() if feed else None
    told |= {"steps_s": stepper.steps_s, "final_loss": stepper.loss}
    return told | counters.of_device() | stepper.seen.ended(blocks, feed.loader.queue_batches if feed else 0)


def _stepping(
    spec: TrialSpec, workload: Workload, device: torch.device, me: RankIdentity, feed: Feed | None
) -> tuple[Training | EmulatedDevice, Clock]:
    """What takes the steps, and their clock; an emulated device is both."""
    if spec.emulated_step_s:
        emulated = EmulatedDevice(step_s=spec.emulated_step_s)
        return emulated, emulated
    copied = getattr(feed and feed.loader, "copies", None)
    clock = clock_for(device, copied and copied.queued, ranges=spec.measure.profile == "nvtx")
    return build(spec, workload, spec.variant_in(workload.variants), device, me), clock


def _open_feed(spec: TrialSpec, workload: Workload, dataset: Dataset, me: RankIdentity, device: torch.device) -> Feed:
    """The rank's loader. Its workers fork here, before the process group, whose sockets they would inherit."""
    data = spec.data
    if data.source == "memory":  # one batch, for which no library need be installed
        loader = "threads" if data.loader == "torch" else data.loader
        data = data.model_copy(update={"num_workers": 0, "loader": loader})
    with io_observer.begun(spec, dataset, me) as observer:
        reading = LoaderInput(
            dataset,
            data,
            travelling(storage.load(storage.KINDS, workload.kind), spec.data.image_dtype),
            spec.variant_in(workload.variants).sample,
            spec.rank_batch,
            spec.layout.place(me.rank).dp,
            spec.layout.dp,
            spec.measure.seed,
            workloads.from_file(spec.data.reader, "reader") if ":" in (spec.data.reader or "") else None,
            device.index,
        )
        opened = storage.loader_of(data)(reading)
    return Feed(opened, dataset, spec.rank_batch, observer)


def _kept(batch: Batch, pin_memory: bool) -> Batch:
    """A copy of a batch, whose memory the loader will use again."""
    copies = {name: value.clone() for name, value in batch.items()}
    return {name: value.pin_memory() if pin_memory and not value.is_cuda else value for name, value in copies.items()}


def _total_steps(spec: TrialSpec) -> int:
    plan, warmup = layout(spec), spec.measure.warmup_steps
    if spec.data.source != "storage":
        return warmup + SETTLING_STEPS + spec.measure.steps
    if spec.emulated:
        return plan.total_loader_steps
    return warmup + CEILING_BLOCKS * (SETTLING_STEPS + plan.ceiling_steps) + plan.total_loader_steps


def _measure(
    spec: TrialSpec, stepper: Stepper, feed: Feed | None, batch: Batch, me: RankIdentity, placed: staging.Placed
) -> tuple[list[Block], Reads | None]:
    """Interleaved blocks where there is a pipeline to compare with memory; else one plain block."""
    if feed is None or spec.data.source == "memory":
        return [plain_block(stepper, batch, spec.measure.steps)], None
    plan, device = layout(spec), stepper.training

    def counter() -> MountIO | None:
        if not me.reads_counters:
            return None
        return feed.bucket.interface() if feed.bucket else mount_io(placed.folder) if placed.folder else None

    if isinstance(device, EmulatedDevice):
        blocks, reads = reconciled(feed, counter, lambda: emulated_blocks(stepper, feed, device, plan))
        rest = len(feed.dataset.index) // spec.global_batch - 1 - plan.total_loader_steps
        if spec.measure.epochs is not None and rest > 0:
            blocks.append(rest_of_epoch(stepper, feed, device, rest))
        return blocks, reads
    extra = extra_pairs(spec, len(feed.dataset.index))

    def prepare_more() -> None:
        page_cache.prepare_more(spec, placed.read_first or feed.dataset, me, extra)
        barrier()

    return reconciled(feed, counter, lambda: interleaved_blocks(stepper, feed, batch, plan, extra, prepare_more))
