"""What every rank does first: its threads and device, its process group, its model spread over the ranks."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore, distributed_c10d  # type: ignore[attr-defined]

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.machine import cpus_near, device_ids, ranges_of
from benchsuite.storage.dataset.kinds import normalised_images
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.first_weights import begun
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.precision import set_float32
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Workload

PATIENCE = 0.5
"""The share of a trial's time, as far as it is left at the start, that a rank waits for others in one collective."""
WATCHDOG_S = 90.0
"""How long before a trial's end that wait is over: NCCL's watchdog takes so long to write who was missing."""
SHORT_PATIENCE_S, MIN_PATIENCE_S = 30.0, 1.0
"""What a rank waits at least, where half of the time left is as much."""


def device_of(spec: TrialSpec, me: RankIdentity) -> torch.device:
    """This rank's device."""
    if spec.device != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", me.local_rank if me.device_index is None else me.device_index)


def devices_of(spec: TrialSpec, me: RankIdentity) -> list[torch.device]:
    """The CUDA devices that this rank computes on: one, in data_parallel all that it may use; empty on a CPU."""
    device = device_of(spec, me)
    if device.type != "cuda":
        return []
    if spec.layout.name != "data_parallel":
        return [device]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def bind(spec: TrialSpec, me: RankIdentity) -> str | None:
    """Keep this process, and what it forks, to the cores near its device; which these are, None where it is not bound.

    Memory follows, since the kernel gives a process pages of the node on which it runs. A rank is not bound to fewer
    cores than its node has for each of its ranks: it and its loader would lose more by that than distance costs.
    """
    index = device_of(spec, me).index
    ids, mine = device_ids() if spec.cpu_binding == "device" else [], os.sched_getaffinity(0)
    cpus = cpus_near(ids[index]) & mine if index is not None and index < len(ids) else set()
    if not cpus or len(cpus) < (me.cores_per_rank or len(mine)):
        return None
    os.sched_setaffinity(0, cpus)
    return ranges_of(cpus)


def settle(spec: TrialSpec, me: RankIdentity) -> torch.device:
    """Threads, precision, and this rank's device."""
    near = len(os.sched_getaffinity(0)) if spec.cpu_binding == "device" else math.inf  # it has been bound to these
    torch.set_num_threads(int(min(spec.threads_per_rank or 1, near)))
    set_float32(spec.precision)
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    device = device_of(spec, me)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for one in devices_of(spec, me):
        torch.cuda.reset_peak_memory_stats(one)
    return device


def rendezvous_of(me: RankIdentity, timeout_s: float) -> Store:
    """The key-value store where ranks meet; the launcher has bound its port. One rank needs no socket."""
    if me.world_size == 1:
        return HashStore()
    return TCPStore(
        me.master_addr,
        me.master_port,
        me.world_size,
        is_master=me.rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=me.listen_fd if me.rank == 0 else None,
        use_libuv=torch.__version__ >= "2.8",  # before, libuv's store took connections of no port that was handed over
    )


def patience_s(spec: TrialSpec, me: RankIdentity) -> float:
    """How long a rank waits for others in a collective: not until the trial is killed, so that it can say so before."""
    left_s = spec.measure.timeout_s - (time.perf_counter() - me.launched_s)
    return max(MIN_PATIENCE_S, min(left_s * PATIENCE, max(left_s - WATCHDOG_S, SHORT_PATIENCE_S)))


def join(rendezvous: Store, me: RankIdentity, device: torch.device, spec: TrialSpec, splits: bool = True) -> None:
    """Form the process group. With `splits` NCCL's further groups are parts of it, and all ranks must make each."""
    dist.init_process_group(
        backend_of(spec, device),
        store=PrefixStore("ranks", rendezvous),
        rank=me.rank,
        world_size=me.world_size,
        timeout=timedelta(seconds=patience_s(spec, me)),
        device_id=device if device.type == "cuda" and splits else None,
    )


def limit_waits(patience: timedelta) -> None:
    """Let every group wait no longer: those that meshes make have torch's own limits, and no argument for another."""
    for group in [*distributed_c10d._world.pg_map]:
        distributed_c10d._set_pg_timeout(patience, group)


def build(spec: TrialSpec, workload: Workload, variant: Variant, device: torch.device, me: RankIdentity) -> Training:
    """The model with the seed's weights, spread over the ranks.

    What is drawn afterwards (dropout, synthetic samples) is the same for ranks that share their samples.
    """
    model, first = begun(workload, variant, spec.measure.seed)
    if spec.data.image_dtype == "uint8":
        workload = replace(workload, arrive=_normalised_before(workload.arrive))
    training = prepare(workload, model, spec.layout, spec, device, spec.global_batch, first)
    if dist.is_initialized():
        limit_waits(timedelta(seconds=patience_s(spec, me)))
    for one in devices_of(spec, me):
        torch.cuda.reset_peak_memory_stats(one)
    torch.manual_seed(1_000_003 * spec.measure.seed + spec.layout.place(me.rank).dp)
    return training


def _normalised_before(arrive: Callable[[Batch], Batch] | None) -> Callable[[Batch], Batch]:
    return normalised_images if arrive is None else lambda batch: arrive(normalised_images(batch))


def backend_of(spec: TrialSpec, device: torch.device) -> str:
    """NCCL between CUDA devices, gloo between CPUs; both where weights are kept off the device."""
    if device.type != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if spec.cpu_offload else "nccl"
