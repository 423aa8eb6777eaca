"""What one rank does for `probe comm`: check each collective by content, then time it in blocks between barriers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchsuite.contract.failed_rank import is_out_of_memory, reason_of
from benchsuite.contract.rank_samples import Heartbeat, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.probe.comm.collectives import Prepared, prepare
from benchsuite.probe.comm.rank_group import Ranks, Timed
from benchsuite.probe.comm.request import DDP_MODES, ELEMENT_BYTES, Cell, Request
from benchsuite.probe.comm.step_tables import table
from benchsuite.probe.comm.stepping import Counted
from benchsuite.probe.ranks import findings_of, leave, request_in
from benchsuite.trial.setup import join, rendezvous_of, settle

WARMUP_CALLS = 3
ESTIMATING_CALLS = 3
MIN_SAMPLE_S = 5e-3
"""A sample is as many calls as take about that long: what ranks leave a barrier apart then counts little."""
MAX_CALLS = 200
MAX_SAMPLES = 200
"""The most samples of a round, where fewer are long enough."""
ROUNDS = 3
OK, UNSUPPORTED, FAILED = 0, 1, 2
_CONNECTION = ("gloo/transport", "closed by peer", "Connection reset", "NCCL communicator was aborted")


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Measure every cell that is asked for; what must not be destroyed before the process ends goes into `keep`."""
    request = request_in(me.folder, Request)
    heart = Heartbeat(me.folder, me.rank)
    device = settle(spec, me)
    join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec)
    control = dist.new_group(backend="gloo")
    ranks = Ranks(me.rank, device, control)
    keep.append(ranks)
    heart.phase("measure")
    heart.total(ROUNDS * len(request.cells) + len(DDP_MODES) * len(request.bucket_bytes))
    with findings_of(me.folder, me.rank).open("w") as out:
        for timed in everything(request, ranks, keep):
            leave(timed, out)
            heart.step()
    heart.phase("done")
    return RankSamples(me.rank, "ok")


def everything(request: Request, ranks: Ranks, keep: list[object]) -> Iterator[Timed]:
    """Every cell, checked and timed; DDP's steps; and what ended well timed again, round by round.

    So that what else goes on for a while meets all sizes alike, and shows in the spread of each.
    """
    unsupported: dict[tuple[str, str, str], Timed] = {}
    good = []
    for number, cell in enumerate(request.cells):
        kind = (cell.op, cell.algorithm, cell.dtype)
        known = unsupported.get(kind)
        timed = replace(known, cell=number) if known else measure(number, cell, request, ranks)
        if timed.status == "skipped":
            unsupported[kind] = timed
        elif timed.status == "ok":
            good.append(number)
        yield timed
    if request.bucket_bytes:
        from benchsuite.probe.comm.ddp_overlap import measure_ddp

        yield from measure_ddp(request, ranks, keep)
    for _ in range(1, ROUNDS):
        for number in good:
            yield again(number, request, ranks)


def measure(number: int, cell: Cell, request: Request, ranks: Ranks) -> Timed:
    """Check a cell by its content, then time it. All ranks come to the same end."""
    prepared: Prepared | None = None
    counted: Counted | None = None
    status, reason = OK, None
    try:
        prepared = prepare(cell, ranks.rank, ranks.device)
        prepared.fill()
    except (RuntimeError, MemoryError, TypeError) as error:
        status, reason = _status(error)
    ended = _agreed(ranks, number, status, reason)
    if ended is not None or prepared is None:
        return ended or Timed(number, "failed", "no buffers")
    try:
        counted = prepared.call()
        _settle(ranks.device)
        reason = prepared.problem() or _miscounted(cell, ranks.rank, counted)
        status = FAILED if reason else OK
    except (RuntimeError, MemoryError, TypeError, ValueError, NotImplementedError) as error:
        status, reason = _status(error)
    ended = _agreed(ranks, number, status, reason)
    if ended is not None:
        return ended
    prepared.blank()
    calls, seconds = timed_calls(prepared.call, request, ranks)
    sent = (None, None) if counted is None else (counted.messages, counted.num_bytes)
    return Timed(number, "ok", None, calls, seconds, *sent)


def again(number: int, request: Request, ranks: Ranks) -> Timed:
    """Time a cell once more that was checked."""
    prepared = prepare(request.cells[number], ranks.rank, ranks.device)
    prepared.blank()
    return Timed(number, "ok", None, *timed_calls(prepared.call, request, ranks))


def timed_calls(call: Callable[[], object], request: Request, ranks: Ranks) -> tuple[int, list[float]]:
    """How many calls a sample has, and the seconds of one call, sample by sample, in one round; warm-up left out."""
    iterations, seconds = math.ceil(request.iterations / ROUNDS), request.seconds / ROUNDS
    ranks.sample_s(call, WARMUP_CALLS)
    each_s = max(ranks.most(ranks.sample_s(call, ESTIMATING_CALLS)) / ESTIMATING_CALLS, 1e-9)
    calls = min(max(math.ceil(min(MIN_SAMPLE_S, seconds) / each_s), 1), MAX_CALLS)
    samples = min(max(math.ceil(seconds / (calls * each_s)), iterations), max(MAX_SAMPLES, iterations))
    together = ranks.replayed(call, calls)
    if together is None:
        return calls, [ranks.sample_s(call, calls) / calls for _ in range(samples)]
    ranks.sample_s(together, 1)
    return calls, [ranks.sample_s(together, 1) / calls for _ in range(samples)]


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(error: BaseException) -> tuple[int, str]:
    """Whether a call was refused, or failed; a lost connection ends the rank.

    Raises:
        RuntimeError: a peer is gone.
    """
    if isinstance(error, dist.DistNetworkError) or any(words in str(error) for words in _CONNECTION):
        raise error
    if is_out_of_memory(error):
        return FAILED, f"out of memory: {reason_of(error)}"
    return UNSUPPORTED, " ".join(str(error).split()) or type(error).__name__


def _agreed(ranks: Ranks, number: int, status: int, reason: str | None) -> Timed | None:
    """How the cell has ended, where it has on any rank; with this rank's reason."""
    worst = int(ranks.most(status))
    return None if worst == OK else Timed(number, "skipped" if worst == UNSUPPORTED else "failed", reason)


def _miscounted(cell: Cell, rank: int, counted: Counted | None) -> str | None:
    """How what was sent differs from what the table says; None where it does not."""
    if counted is None:
        return None
    element_bytes = ELEMENT_BYTES[cell.dtype]
    count = cell.num_bytes // element_bytes
    found = table(cell.op, cell.algorithm, cell.num_ranks)
    wanted = Counted(found.messages(count)[rank], found.sent_elements(count)[rank] * element_bytes)
    return None if counted == wanted else f"sent {counted}, the table says {wanted}"
