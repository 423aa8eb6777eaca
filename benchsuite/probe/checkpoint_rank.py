"""What one rank does for `probe checkpoint`: train a few steps, write model and optimizer, read them back, compare."""

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.utils._pytree import tree_map_only

from benchsuite import workloads
from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.probe.ranks import findings_of, leave, request_in
from benchsuite.probe.state_compare import State, compare
from benchsuite.probe.target import (
    asking,
    evict,
    flush_names,
    load_file,
    make_folder,
    reader_of,
    remove_folder,
    save_file,
    sizes_below,
    writer_to,
)
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.path import ObjectPath, path_of
from benchsuite.storage.observe.requests import Counted
from benchsuite.trial.setup import build, join, rendezvous_of, settle
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.parallel.waits import NoClock
from benchsuite.workloads.workload import Batch, Workload

FILE = "checkpoint.pt"
WARMUP_STEPS = 2
BARE_STEPS = 5
"""Steps with no checkpoint under way, timed before each async one."""
DONE, UNDER_WAY, FAILED = 1.0, 0.0, -1.0
"""How far a rank's async checkpoint is; the least of all ranks counts."""
COPIED = StagingOptions(False, False, False, False)
"""How torch's own default takes the copy that is written while training goes on."""
FULL_DISK_BYTES = 1 << 20
"""Free space below which a write that fails has filled the disk."""


@dataclass(frozen=True)
class Request:
    """What the ranks are asked for besides their spec."""

    target: str
    """A folder or prefix of this probe's own."""
    mode: str
    repeats: int


@dataclass(frozen=True)
class Written:
    """One checkpoint as one rank saw it."""

    num_bytes: int
    """All files; seen by rank 0."""
    num_files: int
    gather_s: float
    """The state is collected: rank 0 gets it from all others; else each has its own."""
    blocked_s: float
    """Training waits."""
    durable_s: float
    """Seconds from the beginning until files and folder are flushed."""
    write_s: float
    """Seconds without gathering, until files and folder are flushed."""
    read_s: float
    resident_before_read: float | None
    bare_steps_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    """Steps of training while it was written."""
    requests: Counted | None = None
    """To a bucket, by this rank, to write, to list what was written and to read."""
    differing_replicas: int = 0
    """Values that this rank read as another had them: ranks hold them whole and not alike, one copy is written."""


@dataclass(frozen=True)
class _Job:
    """A rank at work."""

    training: Training
    batch: Batch
    me: RankIdentity
    device: torch.device
    group: dist.ProcessGroup | None
    """Apart from that of training, so that both may talk at once."""
    requests_since: Callable[[], Counted | None] = lambda: None
    """Requests to a bucket since it was called last."""

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(self.group)

    def settled_s(self) -> float:
        """The time, once the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def step_s(self) -> float:
        """Train one step; its seconds."""
        start_s = self.settled_s()
        self.training.step(self.batch, NoClock())
        return self.settled_s() - start_s


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Write and read checkpoints of a parallelized model, as often as asked; leave a line for each.

    What must not be destroyed before the process ends is put into `keep`.
    """
    request = request_in(me.folder, Request)
    heart = Heartbeat(me.folder, me.rank)
    device = settle(spec, me)
    if spec.layout.needs_group:
        join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec)
    heart.phase("build")
    workload: Workload = workloads.load(workloads.WORKLOADS, spec.workload, "benchsuite.workloads")
    variant = spec.variant_in(workload.variants)
    training = build(spec, workload, variant, device, me)
    group = dist.new_group(backend="gloo") if dist.is_initialized() else None
    batch = workload.synthetic(variant, spec.rank_batch, device)
    target = path_of(request.target)
    job = _Job(training, batch, me, device, group, asking(target))
    keep.append(job)
    heart.phase("warmup")
    heart.total(request.repeats)
    for _ in range(WARMUP_STEPS):
        job.step_s()
    heart.phase("measure")
    with findings_of(me.folder, me.rank).open("w") as out:
        for number in range(request.repeats):
            with said_plainly(target.parent):
                leave(once(job, target / str(number), request.mode), out)
            heart.step()
    heart.phase("done")
    return RankSamples(me.rank, "ok")


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """Turn what torch raises when a disk is full, or cannot be read or written, into a sentence."""
    try:
        yield
    except UserError:
        raise
    except (Exception, CheckpointException) as error:
        cause: BaseException = error
        while isinstance(cause, CheckpointException) and cause.failures:
            cause = next(iter(cause.failures.values()))[0]
        if isinstance(cause, DatasetError) or isinstance(path, ObjectPath):
            raise cause from error
        if isinstance(cause, OSError) and cause.errno != errno.ENOSPC:
            raise UserError(f"{path}: {cause.strerror or cause}") from error
        if isinstance(cause, OSError) or shutil.disk_usage(path).free < FULL_DISK_BYTES:
            raise UserError(f"{path}: no space left for the checkpoint") from error
        if cause is not error:
            raise cause from error
        raise


def once(job: _Job, folder: Path, mode: str) -> Written:
    """One checkpoint: written, evicted, read, compared and removed; after one more step, so that each is another."""
    job.step_s()
    if job.me.rank == 0:
        make_folder(folder)
    job.requests_since()
    job.barrier()
    write, read = {"rank0": (_write_rank0, _read_rank0), "sharded": (_write_sharded, _read_sharded)}.get(
        mode, (_write_async, _read_sharded)
    )
    timed, state = write(job, folder)
    job.barrier()
    files = sizes_below(folder) if job.me.rank == 0 else {}
    resident = evict([*files])
    job.barrier()
    start_s = job.settled_s()
    found = read(job, folder, state)
    job.barrier()
    read_s = job.settled_s() - start_s
    requests = job.requests_since()
    others = compare(state, found, folder.parent.parent, job.group)
    job.barrier()
    if job.me.rank == 0:
        remove_folder(folder)
    return Written(
        num_bytes=sum(files.values()),
        num_files=len(files),
        read_s=read_s,
        resident_before_read=resident,
        requests=requests,
        differing_replicas=others,
        **timed,
    )


def _state(job: _Job, whole: bool) -> State:
    """Model and optimizer; whole on rank 0 alone, else each rank's part."""
    options = StateDictOptions(full_state_dict=whole, cpu_offload=whole)
    model, optimizer = get_state_dict(job.training.model, job.training.optimizer, options=options)
    return {"model": model, "optimizer": optimizer}


def _write_rank0(job: _Job, folder: Path) -> tuple[dict[str, Any], State]:
    """Gathered on rank 0 and written by torch.save, the others waiting."""
    start_s = job.settled_s()
    state = _state(job, whole=True)
    job.barrier()
    gather_s = job.settled_s() - start_s
    if job.me.rank == 0:
        save_file(state, folder / FILE)
        flush_names(folder)
    job.barrier()
    took_s = time.perf_counter() - start_s
    return _blocking(gather_s, took_s), state


def _blocking(gather_s: float, took_s: float) -> dict[str, Any]:
    return {"gather_s": gather_s, "blocked_s": took_s, "durable_s": took_s, "write_s": took_s - gather_s}


def _read_rank0(job: _Job, folder: Path, _state: State) -> State:
    if job.me.rank:
        return {}
    found: State = load_file(folder / FILE)
    return found


def _write_sharded(job: _Job, folder: Path) -> tuple[dict[str, Any], State]:
    """Each rank writes its part, by torch.distributed.checkpoint, which flushes the files."""
    start_s = job.settled_s()
    state = _state(job, whole=False)
    gather_s = job.settled_s() - start_s
    save(state, storage_writer=writer_to(folder), process_group=job.group)
    if job.me.rank == 0:
        flush_names(folder)
    job.barrier()
    took_s = time.perf_counter() - start_s
    return _blocking(gather_s, took_s), state


def _read_sharded(job: _Job, folder: Path, state: State) -> State:
    """Into memory that has the shape of the state and holds zeros."""
    blank: State = tree_map_only(Tensor, torch.zeros_like, state)
    load(blank, storage_reader=reader_of(folder), process_group=job.group)
    return blank


def _write_async(job: _Job, folder: Path) -> tuple[dict[str, Any], State]:
    """Copied while training waits, written while it goes on; all ranks train until all are done."""
    bare = [_agreed_step(job, DONE)[0] for _ in range(BARE_STEPS)]
    copy: State = tree_map_only(Tensor, lambda value: value.detach().clone(), _state(job, whole=False))
    job.barrier()
    ended: list[float] = []
    start_s = job.settled_s()
    state = _state(job, whole=False)
    gather_s = job.settled_s() - start_s
    future = async_save(
        state, storage_writer=writer_to(folder), process_group=job.group, async_stager=DefaultStager(COPIED)
    )
    assert isinstance(future, Future)
    blocked_s = job.settled_s() - start_s
    future.add_done_callback(partial(_note_end, folder, ended))
    steps, over = [], False
    while not over:
        failed = future.done() and future.exception() is not None
        seconds, over = _agreed_step(job, FAILED if failed else DONE if ended else UNDER_WAY)
        steps.append(seconds)
    future.result()
    durable_s = ended[0] - start_s
    timed = {"gather_s": gather_s, "blocked_s": blocked_s, "durable_s": durable_s, "write_s": durable_s - gather_s}
    return {**timed, "bare_steps_s": bare, "steps_s": steps}, copy


def _note_end(folder: Path, ended: list[float], _future: object) -> None:
    """Note when all is flushed, the folder's names as well."""
    try:
        flush_names(folder)
    finally:
        ended.append(time.perf_counter())


def _agreed_step(job: _Job, state: float) -> tuple[float, bool]:
    """Train one step; its seconds, and whether all ranks are done or one has failed, so that all take equally many."""
    start_s = job.settled_s()
    job.training.step(job.batch, NoClock())
    flag = torch.tensor(state, device=job.device)
    if dist.is_initialized():
        dist.all_reduce(flag, dist.ReduceOp.MIN)
    over = flag.item() != UNDER_WAY
    return job.settled_s() - start_s, over
