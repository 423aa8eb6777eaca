"""What one rank does for `probe checkpoint --model`: write its files of a checkpoint, read them back cold, compare.

Its tensors are random bits that a seed gives again, so that memory holds one copy of them.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.probe.checkpoint_rank import said_plainly
from benchsuite.probe.llm.files import FRAMEWORKS, Cut, Files, Part
from benchsuite.probe.llm.shapes import shapes_of
from benchsuite.probe.ranks import findings_of, leave, request_in
from benchsuite.probe.state_compare import different
from benchsuite.probe.target import (
    asking,
    evict,
    flush_names,
    load_file,
    make_folder,
    reader_of,
    remove,
    save_file,
    sizes_below,
    writer_to,
)
from benchsuite.storage.objects.path import path_of
from benchsuite.storage.observe.requests import Counted
from benchsuite.trial.setup import join, rendezvous_of, settle

State = dict[str, Tensor]
Reading = Callable[[], State]
"""Reads what was written."""


@dataclass(frozen=True)
class Request:
    """What the ranks are asked for besides their spec."""

    target: str
    """A folder or prefix of this probe's own."""
    model: str
    framework: str
    cut: Cut
    repeats: int


@dataclass(frozen=True)
class Share:
    """The files of one rank in one checkpoint."""

    num_bytes: int
    """Bytes as they lie on the disk or in the bucket."""
    num_files: int
    durable_s: float
    """Seconds from a common beginning until this rank's files and their folder are flushed, or its uploads complete."""
    read_s: float
    resident_before_read: float | None
    requests: Counted | None = None
    """To a bucket, to write, to list what was written and to read."""


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Write and read this rank's files, as often as asked; leave a line for each.

    What must not be destroyed before the process ends is put into `keep`.
    """
    request = request_in(me.folder, Request)
    heart = Heartbeat(me.folder, me.rank)
    device = settle(spec, me)
    if me.world_size > 1:
        join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec)
    heart.phase("build")
    files = FRAMEWORKS[request.framework](shapes_of(request.model), request.cut, me.rank)
    target = path_of(request.target)
    requests_since = asking(target)
    heart.phase("measure")
    heart.total(request.repeats)
    with findings_of(me.folder, me.rank).open("w") as out:
        for number in range(request.repeats):
            with said_plainly(target.parent):
                leave(once(request, files, me.rank, number, requests_since), out)
            heart.step()
    heart.phase("done")
    return RankSamples(me.rank, "ok")


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def once(request: Request, files: Files, rank: int, number: int, requests_since: Callable[[], Counted | None]) -> Share:
    """One checkpoint's share: written, evicted, read, compared with its seed and removed."""
    folder = path_of(request.target) / f"step-{number}"
    if rank == 0:
        make_folder(folder)
    requests_since()
    state = state_of(files, rank, number)
    write = _write_with_dcp if request.framework != "deepspeed" else _write_with_torch_save
    _barrier()
    start_s = time.perf_counter()
    read = write(files, state, folder, rank)
    flush_names(folder)
    durable_s = time.perf_counter() - start_s
    state.clear()
    paths = [folder / name for name in files]
    resident = evict(paths)
    sizes = sizes_below(folder)
    num_bytes = sum(sizes[path] for path in paths)
    _barrier()
    start_s = time.perf_counter()
    found = read()
    read_s = time.perf_counter() - start_s
    requests = requests_since()
    _compare(files, found, rank, number, folder)
    remove(paths)
    _barrier()
    return Share(num_bytes, len(paths), durable_s, read_s, resident, requests)


def state_of(files: Files, rank: int, number: int) -> State:
    """The tensors of a rank, by name."""
    return {part.name: content(part, rank, number) for parts in files.values() for part in parts}


def content(part: Part, rank: int, number: int) -> Tensor:
    """Random bits in the shape of a part, the same for the same rank and checkpoint."""
    words = -(-part.num_bytes // 8)
    generator = np.random.Generator(np.random.SFC64([zlib.crc32(part.name.encode()), rank, number]))
    raw = generator.integers(0, 1 << 64, words, dtype=np.uint64).view(np.uint8)[: part.num_bytes]
    return torch.from_numpy(raw).view(getattr(torch, part.dtype)).reshape(part.shape)


def _blank(files: Files) -> State:
    """Ones in the shape of what a rank has: memory that is in use already, as a trainer's is."""
    parts = [part for found in files.values() for part in found]
    return {part.name: torch.ones(part.shape, dtype=getattr(torch, part.dtype)) for part in parts}


def _compare(files: Files, found: State, rank: int, number: int, folder: Path) -> None:
    """Refuse what was not read as it was written.

    Raises:
        UserError: a tensor is missing or differs in a bit.
    """
    for part in (part for parts in files.values() for part in parts):
        if different({"it": content(part, rank, number)}, {"it": found.pop(part.name, None)}):
            raise UserError(f"{folder.parent.parent}: what rank {rank} read is not what it wrote: {part.name}")


def _write_with_dcp(files: Files, state: State, folder: Path, rank: int) -> Reading:
    """Write by torch.distributed.checkpoint's own writer, which flushes each file, a thread for each."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    writer = writer_to(folder, len(files))
    writer.set_up_storage_writer(True)
    others = [SavePlan([])] * rank  # a plan's place in the list is the rank in the names of its files
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = writer.prepare_global_plan([*others, *plans])[rank]
    results = writer.write_data(plan, planner).wait()
    metadata.storage_data = {result.index: result.storage_data for result in results}
    return partial(_read_with_dcp, files, folder, metadata)


def _read_with_dcp(files: Files, folder: Path, metadata: Metadata) -> State:
    state = _blank(files)
    planner, reader = DefaultLoadPlanner(), reader_of(folder)
    planner.set_up_planner(state, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()
    return state


def _write_with_torch_save(files: Files, state: State, folder: Path, _rank: int) -> Reading:
    """Write by torch.save, a file after the other, as DeepSpeed does; each is flushed, unlike DeepSpeed's."""
    for name, parts in files.items():
        save_file({part.name: state[part.name] for part in parts}, folder / name)
    return partial(_read_with_torch_load, files, folder)


def _read_with_torch_load(files: Files, folder: Path) -> State:
    found: Mapping[str, Any] = {}
    for name in files:
        found = {**found, **load_file(folder / name)}
    return dict(found)
