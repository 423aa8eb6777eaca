"""Each collective as its backend offers it, or as a step table: its buffers, the call, and what it must have made.

Sizes are those of nccl-tests: the whole array, which is N times a rank's own part in all_gather, reduce_scatter and
all_to_all. Contents are small whole numbers, so that sums are exact in every dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchsuite.predict.theory.collectives import BACKEND
from benchsuite.probe.comm.request import Cell
from benchsuite.probe.comm.step_tables import table
from benchsuite.probe.comm.stepping import Counted, Stepper

DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
}
EXACT: Mapping[str, int] = {"fp16": 2048, "bf16": 256, "int8": 127}
"""Up to here every whole number is one of the dtype; the others reach further than is used."""
SUMMED_PERIODS = (7, 5, 3, 2)
COPIED_PERIODS = (251, 113)
"""Primes, so that a chunk in another's place shows: chunks are rarely as long as a multiple of them."""
POISON = 99


@dataclass(frozen=True)
class Prepared:
    """A collective ready to be called, on one rank."""

    call: Callable[[], Counted | None]
    """Returns what was counted, where the messages are ours."""
    inputs: Sequence[tuple[Tensor, Tensor]]
    """What is read, and its content before a call that is checked."""
    output: Tensor
    expected: Tensor | None
    """Of the output; None where this rank gets nothing."""

    def fill(self) -> None:
        """Contents to be checked; what is only written holds something else."""
        self.output.fill_(POISON)
        for target, content in self.inputs:
            target.copy_(content)

    def blank(self) -> None:
        """Zeros, which stay zeros however often they are added up."""
        self.output.zero_()
        for target, _ in self.inputs:
            target.zero_()

    def problem(self) -> str | None:
        """How the output differs from what it must be; None where it does not."""
        if self.expected is None or torch.equal(self.output, self.expected):
            return None
        wrong = (self.output != self.expected).nonzero().flatten()
        first = int(wrong[0])
        got, wanted = self.output[first].item(), self.expected[first].item()
        return f"element {first} is {got:g}, not {wanted:g}; {len(wrong)} of {self.output.numel()} differ"


@dataclass(frozen=True)
class Place:
    """Where this rank is, and what its tensors are."""

    rank: int
    num_ranks: int
    dtype: str
    device: torch.device

    def tensor(self, base: Sequence[int], count: int, start: int = 0) -> Tensor:
        """Elements start, start + 1, ... of a sequence that repeats."""
        turned = [*base[start % len(base) :], *base[: start % len(base)]]
        return torch.tensor(turned, dtype=DTYPES[self.dtype], device=self.device).repeat(-(-count // len(base)))[:count]

    def empty(self, count: int) -> Tensor:
        """A buffer."""
        return torch.empty(count, dtype=DTYPES[self.dtype], device=self.device)

    def summand(self, rank: int) -> list[int]:
        """What a rank adds, a period of it; ranks too many for the dtype add zeros."""
        limit = EXACT.get(self.dtype, 1 << 20)
        period = next((p for p in SUMMED_PERIODS if (p - 1) * self.num_ranks <= limit), SUMMED_PERIODS[-1])
        return [(index + 3 * rank) % period if rank < limit else 0 for index in range(period)]

    def summed(self) -> list[int]:
        """The same of all ranks together."""
        return [sum(values) for values in zip(*map(self.summand, range(self.num_ranks)), strict=True)]

    def copied(self, rank: int) -> list[int]:
        """What a rank has that others get as it is."""
        period = next(p for p in COPIED_PERIODS if p <= EXACT.get(self.dtype, 1 << 20))
        return [(index + 31 * rank) % period for index in range(period)]


def element_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize


def prepare(cell: Cell, rank: int, device: torch.device) -> Prepared:
    """Buffers and call of a cell, on a rank of a group that is formed."""
    place = Place(rank, cell.num_ranks, cell.dtype, device)
    count = cell.num_bytes // element_bytes(cell.dtype)
    if cell.algorithm == BACKEND:
        return OPS[cell.op](place, count)
    return _stepped(cell, place, count)


def _no_count(call: Callable[[], object]) -> Callable[[], None]:
    def without() -> None:
        call()

    return without


def _all_reduce(place: Place, count: int) -> Prepared:
    buffer = place.empty(count)
    given = place.tensor(place.summand(place.rank), count)
    expected = place.tensor(place.summed(), count)
    return Prepared(_no_count(partial(dist.all_reduce, buffer)), [(buffer, given)], buffer, expected)


def _reduce(place: Place, count: int) -> Prepared:
    buffer = place.empty(count)
    given = place.tensor(place.summand(place.rank), count)
    expected = place.tensor(place.summed(), count) if place.rank == 0 else None
    return Prepared(_no_count(partial(dist.reduce, buffer, 0)), [(buffer, given)], buffer, expected)


def _broadcast(place: Place, count: int) -> Prepared:
    buffer, content = place.empty(count), place.tensor(place.copied(0), count)
    inputs = [(buffer, content)] if place.rank == 0 else []
    return Prepared(_no_count(partial(dist.broadcast, buffer, 0)), inputs, buffer, content)


def _all_gather(place: Place, count: int) -> Prepared:
    own, whole = place.empty(count // place.num_ranks), place.empty(count)
    given = place.tensor(place.copied(place.rank), own.numel())
    return Prepared(
        _no_count(partial(dist.all_gather_into_tensor, whole, own)), [(own, given)], whole, _gathered(place, count)
    )


def _gathered(place: Place, count: int) -> Tensor:
    parts = [place.tensor(place.copied(rank), count // place.num_ranks) for rank in range(place.num_ranks)]
    return torch.cat(parts)


def _reduce_scatter(place: Place, count: int) -> Prepared:
    own, whole = place.empty(count // place.num_ranks), place.empty(count)
    given = place.tensor(place.summand(place.rank), count)
    expected = place.tensor(place.summed(), own.numel(), place.rank * own.numel())
    return Prepared(_no_count(partial(dist.reduce_scatter_tensor, own, whole)), [(whole, given)], own, expected)


def _all_to_all(place: Place, count: int) -> Prepared:
    into, out_of = place.empty(count), place.empty(count)
    given = place.tensor(place.copied(place.rank), count)
    each = count // place.num_ranks
    parts = [place.tensor(place.copied(rank), each, place.rank * each) for rank in range(place.num_ranks)]
    return Prepared(_no_count(partial(dist.all_to_all_single, into, out_of)), [(out_of, given)], into, torch.cat(parts))


def _send_recv(place: Place, count: int) -> Prepared:
    """To the next rank and from the one before, at once; receives first, as in `benchsuite.probe.comm.stepping`."""
    if place.num_ranks == 1:
        raise RuntimeError("one rank has no other to send to")
    into, out_of = place.empty(count), place.empty(count)
    after, before = (place.rank + 1) % place.num_ranks, (place.rank - 1) % place.num_ranks

    def call() -> None:
        posted = [dist.P2POp(dist.irecv, into, before), dist.P2POp(dist.isend, out_of, after)]
        for work in dist.batch_isend_irecv(posted):
            work.wait()

    given = place.tensor(place.copied(place.rank), count)
    return Prepared(call, [(out_of, given)], into, place.tensor(place.copied(before), count))


OPS: Mapping[str, Callable[[Place, int], Prepared]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "send_recv": _send_recv,
}


def _stepped(cell: Cell, place: Place, count: int) -> Prepared:
    """A step table's collective; all are in place, and what a rank owns is its part of the array."""
    found = table(cell.op, cell.algorithm, place.num_ranks)
    buffer = place.empty(count)
    stepper = Stepper(found, place.rank, buffer)
    own = slice(place.rank * (count // place.num_ranks), (place.rank + 1) * (count // place.num_ranks))
    adds = cell.op in ("all_reduce", "reduce_scatter", "reduce")
    if adds:
        given, result = place.tensor(place.summand(place.rank), count), place.tensor(place.summed(), count)
    elif cell.op == "broadcast":
        given = result = place.tensor(place.copied(0), count)
    else:
        given, result = place.tensor(place.copied(place.rank), count // place.num_ranks), _gathered(place, count)
    if cell.op == "reduce_scatter":
        return Prepared(stepper.run, [(buffer, given)], buffer[own], result[own])
    if cell.op == "all_gather":
        return Prepared(stepper.run, [(buffer[own], given)], buffer, result)
    inputs = [] if cell.op == "broadcast" and place.rank else [(buffer, given)]
    return Prepared(stepper.run, inputs, buffer, None if cell.op == "reduce" and place.rank else result)
