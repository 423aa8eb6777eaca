"""What one rank does: evict, load, build, warm up, measure. Read this first."""

import os
import resource
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

import storage
import workloads
from benchsuite.blocks import CEILING_BLOCKS, LOADER_BLOCKS, SETTLING_STEPS, layout
from benchsuite.clock import clock_for
from benchsuite.measure import Feed, Stepper, interleaved_blocks, plain_block
from benchsuite.ranks import Block, Heartbeat, RankIdentity, RankResult
from benchsuite.spec import TrialSpec
from storage import pagecache
from storage.format import Dataset, open_dataset
from storage.loaders import Batch
from workloads.parallel.account import account
from workloads.parallel.apply import Training, prepare
from workloads.precision import set_float32
from workloads.spec import Variant
from workloads.workload import Workload


def run_rank(spec: TrialSpec, folder: Path | None, me: RankIdentity, keep: list[object]) -> RankResult:
    """Run one rank of a trial on the dataset in `folder` and return what it measured.

    What must not be destroyed before the process ends is put into `keep`: dropping a DDP model can hang.
    """
    heart = Heartbeat(me.folder, me.rank)
    device = _settle(spec, me)
    rendezvous = _rendezvous(me, spec.measure.timeout_s)
    dataset = open_dataset(folder) if folder is not None and spec.data.source != "synthetic" else None

    heart.phase("evict")
    resident = _prepare_cache(spec, dataset, me, rendezvous)

    heart.phase("load")
    workload: Workload = workloads.load(workloads.WORKLOADS, spec.workload, "benchsuite.workloads")
    opening_s = time.perf_counter()
    feed = _open_feed(spec, workload, dataset, me, device) if dataset else None
    keep.append(feed)
    batch = _kept(feed(), spec.data.pin_memory and device.type == "cuda") if feed else None
    first_batch_s = time.perf_counter() - opening_s if feed else None
    if spec.layout.needs_group:
        _join(rendezvous, me, device, spec.measure.timeout_s)

    heart.phase("build")
    variant = workload.variants[spec.variant]
    training = _build(spec, workload, variant, device, me.rank)
    keep.append(training)
    if batch is None:
        batch = workload.synthetic(variant, spec.rank_batch, device)

    heart.phase("warmup")
    stepper = Stepper(training, clock_for(device), heart)
    heart.total(_total_steps(spec))
    startup_s = time.perf_counter() - me.launched_s
    stepper.run(lambda: batch, spec.measure.warmup_steps)

    heart.phase("measure")
    blocks = _measure(spec, stepper, feed, batch)
    peak_memory_bytes, counted = _peak_memory(device), _account(training, batch, spec.compile)
    heart.phase("done")
    return RankResult(
        me.rank,
        "ok",
        phase="done",
        blocks=blocks,
        peak_memory_bytes=peak_memory_bytes,
        host_memory_bytes=_host_memory(),
        first_batch_s=first_batch_s,
        startup_s=startup_s,
        steps_s=stepper.steps_s,
        decoded_sample_bytes=sum(value.nbytes for value in batch.values()) // spec.rank_batch,
        cache_resident_before=resident,
        final_loss=stepper.loss,
        skipped_steps=training.scaler.skipped_steps if spec.precision == "fp16" else None,
        account=counted,
        tokens_per_sample=variant.sample.get("seq_len"),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        num_devices=torch.cuda.device_count() if spec.parallelism == "data_parallel" else 1,
    )


def _account(training: Training, batch: Batch, compiled: bool) -> dict[str, Any] | None:
    """What a step holds and sends; None where counting takes more memory than there is.

    Counting runs uncompiled, so what a compiled step keeps is not known.
    """
    try:
        counted = asdict(account(training, batch))
    except torch.OutOfMemoryError:
        return None
    return counted | {"activations_bytes": None} if compiled else counted


def _build(spec: TrialSpec, workload: Workload, variant: Variant, device: torch.device, rank: int) -> Training:
    """The model with the seed's weights, the same on all ranks, spread over them.

    What is drawn afterwards (dropout, synthetic samples) is the same for ranks that share their samples.
    """
    torch.manual_seed(spec.measure.seed)
    model = workload.build(variant)
    training = prepare(workload, model, spec.layout, spec, device, spec.global_batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(1_000_003 * spec.measure.seed + spec.layout.place(rank).dp)
    return training


def _settle(spec: TrialSpec, me: RankIdentity) -> torch.device:
    """Threads, precision, and this rank's device."""
    torch.set_num_threads(spec.threads_per_rank or 1)
    set_float32(spec.precision)
    if spec.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", me.local_rank)
    torch.cuda.set_device(device)
    torch.cuda.reset_peak_memory_stats(device)
    return device


def _rendezvous(me: RankIdentity, timeout_s: float) -> Store:
    """The key-value store where ranks meet; the launcher has bound its port. One rank needs no socket."""
    if me.world_size == 1:
        return HashStore()
    return TCPStore(
        "127.0.0.1",
        me.master_port,
        me.world_size,
        is_master=me.rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=me.listen_fd if me.rank == 0 else None,
    )


def _prepare_cache(spec: TrialSpec, dataset: Dataset | None, me: RankIdentity, rendezvous: Store) -> float | None:
    """Bring the page cache to the state asked for, once per node, before any rank reads; its measured residency."""
    if dataset is None or spec.data.source != "storage":
        return None
    resident = None
    if me.local_rank == 0:
        files = dataset.data_files()
        (pagecache.evict if spec.data.cache == "cold" else pagecache.warm)(files)
        resident = pagecache.residency(files).fraction
        rendezvous.set("cache", "ready")
    rendezvous.wait(["cache"])
    return resident


def _open_feed(spec: TrialSpec, workload: Workload, dataset: Dataset, me: RankIdentity, device: torch.device) -> Feed:
    """The rank's loader. Its workers fork here, before the process group, whose sockets they would inherit."""
    changes: dict[str, object] = {"pin_memory": spec.data.pin_memory and device.type == "cuda"}
    if spec.data.source == "memory":
        changes["num_workers"] = 0
    loader = storage.load(storage.LOADERS, spec.data.loader)(
        dataset,
        spec.data.model_copy(update=changes),
        storage.load(storage.KINDS, workload.kind),
        workload.variants[spec.variant].sample,
        spec.rank_batch,
        spec.layout.place(me.rank).dp,
        spec.layout.dp,
        spec.measure.seed,
    )
    return Feed(loader, dataset, spec.rank_batch)


def _kept(batch: Batch, pin_memory: bool) -> Batch:
    """A copy of a batch, whose memory the loader will use again."""
    copies = {name: value.clone() for name, value in batch.items()}
    return {name: value.pin_memory() if pin_memory and not value.is_cuda else value for name, value in copies.items()}


def _join(rendezvous: Store, me: RankIdentity, device: torch.device, timeout_s: float) -> None:
    """Form the process group: NCCL between CUDA devices, gloo between CPUs."""
    cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=PrefixStore("ranks", rendezvous),
        rank=me.rank,
        world_size=me.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if cuda else None,
    )


def _total_steps(spec: TrialSpec) -> int:
    plan, warmup = layout(spec), spec.measure.warmup_steps
    if spec.data.source != "storage":
        return warmup + SETTLING_STEPS + spec.measure.steps
    ceiling = CEILING_BLOCKS * (SETTLING_STEPS + plan.ceiling_steps)
    return warmup + ceiling + LOADER_BLOCKS * (plan.drained_steps + plan.loader_steps)


def _measure(spec: TrialSpec, stepper: Stepper, feed: Feed | None, batch: Batch) -> list[Block]:
    """Interleaved blocks where there is a pipeline to compare with memory; else one plain block."""
    if feed is None or spec.data.source == "memory":
        return [plain_block(stepper, batch, spec.measure.steps)]
    return interleaved_blocks(stepper, feed, batch, layout(spec))


def _peak_memory(device: torch.device) -> int:
    """Bytes allocated on the device at most; this process's peak resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _host_memory() -> int | None:
    """Proportional set size of this rank and its workers: shared pages are split among their users."""
    me = psutil.Process(os.getpid())
    try:
        return sum(int(process.memory_full_info().pss) for process in [me, *me.children(recursive=True)])
    except psutil.Error:
        return None
