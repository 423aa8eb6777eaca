"""What every rank does first: its threads and device, its process group, its model spread over the ranks."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.precision import set_float32
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload


def device_of(spec: TrialSpec, me: RankIdentity) -> torch.device:
    """This rank's device."""
    if spec.device != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", me.local_rank if me.device_index is None else me.device_index)


def settle(spec: TrialSpec, me: RankIdentity) -> torch.device:
    """Threads, precision, and this rank's device."""
    torch.set_num_threads(spec.threads_per_rank or 1)
    set_float32(spec.precision)
    device = device_of(spec, me)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)
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


def join(rendezvous: Store, me: RankIdentity, device: torch.device, spec: TrialSpec) -> None:
    """Form the process group."""
    dist.init_process_group(
        backend_of(spec, device),
        store=PrefixStore("ranks", rendezvous),
        rank=me.rank,
        world_size=me.world_size,
        timeout=timedelta(seconds=spec.measure.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def build(spec: TrialSpec, workload: Workload, variant: Variant, device: torch.device, rank: int) -> Training:
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


def backend_of(spec: TrialSpec, device: torch.device) -> str:
    """NCCL between CUDA devices, gloo between CPUs; both where weights are kept off the device."""
    if device.type != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if spec.cpu_offload else "nccl"
