"""What one rank does for `probe nodes`: its device, its node's storage, and exchanges with ranks of other nodes.

All nodes measure the same at the same time, three times over, so that what else goes on meets them alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from benchsuite.contract.errors import UserError
from benchsuite.contract.failed_rank import reason_of
from benchsuite.contract.rank_samples import Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.probe.device import measured
from benchsuite.probe.ranks import findings_of, leave, request_in
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe import page_cache
from benchsuite.storage.rawspeed.plain_reader import read_ceiling
from benchsuite.storage.rawspeed.probe import temporary_below, write_incompressible
from benchsuite.trial.clock import on_device_s
from benchsuite.trial.measure import barrier
from benchsuite.trial.setup import bind, join, rendezvous_of, settle

ROUNDS = 3
EXCHANGED_BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}
READING_THREADS = 4
WARMUP_CALLS, SAMPLES = 2, 3
STORAGE, PAIR, WRONG = "storage_bytes_per_s", "pair_bytes_per_s", "wrong"


@dataclass(frozen=True)
class Screening:
    """What the ranks are asked for besides their spec."""

    seconds: float
    """Seconds for each measurement of a device, over all rounds, and for reading in each."""
    ranks_per_node: int
    path: str | None = None
    """Where each node reads a file of its own."""
    size_bytes: int = 0


@dataclass(frozen=True)
class Found:
    """One value, in bytes or TFLOP per second; `other` is the rank of the other node in a pair."""

    name: str
    value: float = 0.0
    other: int | None = None
    reason: str | None = None


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, _keep: list[object]) -> RankSamples:
    """Measure the device in rounds, then storage, then one pair of nodes after another."""
    asked = request_in(me.folder, Screening)
    heart = Heartbeat(me.folder, me.rank)
    bind(spec, me)
    device = settle(spec, me)
    if me.world_size > 1:
        join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec, splits=False)
    nodes = me.world_size // asked.ranks_per_node
    heart.phase("measure")
    heart.total(ROUNDS + len(meetings(nodes)))
    with findings_of(me.folder, me.rank).open("w") as out:
        for _ in range(ROUNDS):
            for found in _of_device(device, asked.seconds / ROUNDS):
                leave(found, out)
            heart.step()
        if asked.path is not None:
            for found in _of_storage(Path(asked.path), asked, me):
                leave(found, out)
        for pairs in meetings(nodes):
            for found in _of_pair(pairs, asked.ranks_per_node, me, device):
                leave(found, out)
            heart.step()
    heart.phase("done")
    return RankSamples(me.rank, "ok")


def _of_device(device: torch.device, seconds: float) -> Iterator[Found]:
    """Products, memory and copies; or that the device computes wrongly."""
    barrier()
    try:
        for cell in measured(device, seconds):
            yield Found(cell.name, cell.median * (1e9 if cell.unit == "GB/s" else 1))
    except (UserError, RuntimeError) as error:
        yield Found(WRONG, reason=reason_of(error))


def _of_storage(path: Path, asked: Screening, me: RankIdentity) -> Iterator[Found]:
    """What a file of the node's own gives from an evicted page cache, all nodes at once; by its first rank.

    All ranks meet before each round, whatever becomes of one node's file.
    """
    with ExitStack() as made:
        file: Path | None = None
        if me.local_rank == 0:
            try:
                folder = made.enter_context(temporary_below(path, f"node-{me.rank}", asked.size_bytes))
                write_incompressible(folder / "file", asked.size_bytes)
                file = folder / "file"
            except (DatasetError, OSError) as error:
                yield Found(WRONG, reason=reason_of(error))
        for _ in range(ROUNDS):
            if file is not None:
                page_cache.evict([file])
            barrier()
            ceiling = read_ceiling([file], READING_THREADS, asked.seconds) if file is not None else None
            if ceiling is not None:
                yield Found(STORAGE, ceiling.bytes_per_s)


def meetings(nodes: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs in which each node meets every other once and nobody two at once (the circle method)."""
    seats: list[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(one, other) for one, other in met if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _of_pair(
    pairs: Sequence[tuple[int, int]], ranks_per_node: int, me: RankIdentity, device: torch.device
) -> Iterator[Found]:
    """All-reduces between this rank and the one at its place on the node that its own meets, told by the lower one."""
    node, place = divmod(me.rank, ranks_per_node)
    other = next((sum(pair) - node for pair in pairs if node in pair), None)
    barrier()
    if other is None:
        return
    ranks = sorted([me.rank, other * ranks_per_node + place])
    group = dist.new_group(ranks, use_local_synchronization=True)
    buffer = torch.ones(EXCHANGED_BYTES[device.type], dtype=torch.uint8, device=device)
    call = partial(dist.all_reduce, buffer, op=dist.ReduceOp.MAX, group=group)
    for _ in range(WARMUP_CALLS):
        call()
    samples = [_timed_s(call, device) for _ in range(SAMPLES)]
    dist.destroy_process_group(group)  # names of groups count those there are, and a rank may have sat out
    if me.rank == ranks[0]:
        yield Found(PAIR, buffer.nbytes / median(samples), other=ranks[1])  # of two ranks busbw is algbw


def _timed_s(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        return on_device_s(call, 1)
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
