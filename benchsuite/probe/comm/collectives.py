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
from benchsuite.probe.comm.request import ELEMENT_BYTES, Cell
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
SUMMED = ("all_reduce", "reduce_scatter", "reduce")
SHARED_OUT = ("reduce_scatter",)
"""Ops of whose result a rank gets its part."""


@dataclass(frozen=True)
class Prepared:
    """A collective ready to be called, on one rank."""

    call: Callable[[], Counted | None]
    """Returns what was counted, where the messages are ours."""
    inputs: Sequence[tuple[Tensor, Tensor]]
    """What is read, and its content before a call that is checked."""
    output: Tensor
    expected: Tensor | None
    """What the output must be; None where this rank gets nothing."""

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

    def own(self, count: int) -> slice:
        """Where this rank's part of an array is."""
        each = count // self.num_ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    def summand(self, rank: int) -> list[int]:
        """What a rank adds, a period of it; ranks too many for the dtype add zeros."""
        limit = EXACT.get(self.dtype, 1 << 20)
        period = next((p for p in SUMMED_PERIODS if (p - 1) * self.num_ranks <= limit), SUMMED_PERIODS[-1])
        return [(index + 3 * rank) % period if rank < limit else 0 for index in range(period)]

    def summed(self) -> list[int]:
        """Return the sum over all ranks."""
        return [sum(values) for values in zip(*map(self.summand, range(self.num_ranks)), strict=True)]

    def copied(self, rank: int) -> list[int]:
        """What a rank has that others get as it is."""
        period = next(p for p in COPIED_PERIODS if p <= EXACT.get(self.dtype, 1 << 20))
        return [(index + 31 * rank) % period for index in range(period)]


def contents(op: str, place: Place, count: int) -> tuple[Tensor, Tensor]:
    """What a rank gives to an op on an array of `count` elements, and what it gets: all of the result, or its part."""
    each = count // place.num_ranks
    if op in SUMMED:
        result = place.tensor(place.summed(), count)
        return place.tensor(place.summand(place.rank), count), result[place.own(count)] if op in SHARED_OUT else result
    if op == "all_gather":
        return place.tensor(place.copied(place.rank), each), _parts(place, each, 0)
    given = place.tensor(place.copied(0 if op == "broadcast" else place.rank), count)
    if op == "all_to_all":
        return given, _parts(place, each, place.rank * each)
    return given, given if op == "broadcast" else place.tensor(place.copied((place.rank - 1) % place.num_ranks), count)


def _parts(place: Place, each: int, start: int) -> Tensor:
    """Return equally many elements of every rank's own, one rank after the other."""
    return torch.cat([place.tensor(place.copied(rank), each, start) for rank in range(place.num_ranks)])


def prepare(cell: Cell, rank: int, device: torch.device) -> Prepared:
    """Buffers and call of a cell, on a rank of a group that is formed; step tables work in place, on all of it."""
    place = Place(rank, cell.num_ranks, cell.dtype, device)
    count = cell.num_bytes // ELEMENT_BYTES[cell.dtype]
    given, result = contents(cell.op, place, count)
    call: Callable[[], Counted | None]
    if cell.algorithm != BACKEND:
        whole = place.empty(count)
        into = whole[place.own(count)] if cell.op in SHARED_OUT else whole
        out_of = whole[place.own(count)] if cell.op == "all_gather" else whole
        call = Stepper(table(cell.op, cell.algorithm, place.num_ranks), place.rank, whole).run
    else:
        into = place.empty(result.numel())
        out_of = into if cell.in_place else place.empty(given.numel())
        call = partial(_called, CALLS[cell.op], into, out_of)
    inputs = [] if cell.op == "broadcast" and rank else [(out_of, given)]
    return Prepared(call, inputs, into, None if cell.op == "reduce" and rank else result)


def _called(call: Callable[[Tensor, Tensor], object], into: Tensor, out_of: Tensor) -> None:
    call(into, out_of)


def _send_recv(into: Tensor, out_of: Tensor) -> None:
    """Send to the next rank and receive from the one before, at once; receives first, as in `stepping`."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    if num_ranks == 1:
        raise RuntimeError("one rank has no other to send to")
    posted = [
        dist.P2POp(dist.irecv, into, (rank - 1) % num_ranks),
        dist.P2POp(dist.isend, out_of, (rank + 1) % num_ranks),
    ]
    for work in dist.batch_isend_irecv(posted):
        work.wait()


CALLS: Mapping[str, Callable[[Tensor, Tensor], object]] = {
    "all_reduce": lambda into, _: dist.all_reduce(into),
    "all_gather": lambda into, out_of: dist.all_gather_into_tensor(into, out_of),
    "reduce_scatter": lambda into, out_of: dist.reduce_scatter_tensor(into, out_of),
    "all_to_all": lambda into, out_of: dist.all_to_all_single(into, out_of),
    "broadcast": lambda into, _: dist.broadcast(into, 0),
    "reduce": lambda into, _: dist.reduce(into, 0),
    "send_recv": _send_recv,
}
"""What each op calls, with the buffer of its result and that of its input, which are one for ops that work in place."""
