"""Run a step table over send/recv: real messages between real ranks, counted as they go."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from benchsuite.probe.comm.step_tables import Receive, Send, Step, Table


@dataclass(frozen=True)
class Counted:
    """What one rank has sent in one run of a table."""

    messages: int
    num_bytes: int


class Stepper:
    """One rank's part of a table over one array; made once, run as often as wanted."""

    def __init__(self, table: Table, rank: int, array: Tensor) -> None:
        self._steps = table.of_rank(rank)
        self._array = array
        self._bounds = table.bounds(array.numel())
        added = [sum(self._size(one) for one in step.receives if one.adds) for step in self._steps]
        self._scratch = torch.empty(max(added, default=0), dtype=array.dtype, device=array.device)

    def run(self) -> Counted:
        """All steps on what the array holds now; the array then holds the result."""
        messages = num_bytes = 0
        for step in self._steps:
            sent = [(self._part(one.chunks), one.peer) for one in step.sends if self._size(one)]
            into = self._targets(step)
            self._exchange(sent, [(target, one.peer) for target, one in into])
            for target, one in into:
                if one.adds:
                    self._part(one.chunks).add_(target)
            messages += len(sent)
            num_bytes += sum(part.nbytes for part, _ in sent)
        return Counted(messages, num_bytes)

    def _part(self, chunks: tuple[int, int]) -> Tensor:
        return self._array[self._bounds[chunks[0]] : self._bounds[chunks[1]]]

    def _size(self, one: Send | Receive) -> int:
        start, end = one.chunks
        return self._bounds[end] - self._bounds[start]

    def _targets(self, step: Step) -> list[tuple[Tensor, Receive]]:
        """Where a step's messages arrive: what is copied in its place, what is added beside it."""
        found, begin = [], 0
        for one in step.receives:
            size = self._size(one)
            if size and one.adds:
                found.append((self._scratch[begin : begin + size], one))
                begin += size
            elif size:
                found.append((self._part(one.chunks), one))
        return found

    def _exchange(self, sent: Sequence[tuple[Tensor, int]], wanted: Sequence[tuple[Tensor, int]]) -> None:
        """Post all at once, and wait for all: no rank waits for one that has yet to post.

        Receives first: gloo tells a peer that it may send over the connection that its own data would block.
        """
        posted = [dist.P2POp(dist.irecv, part, peer) for part, peer in wanted]
        posted += [dist.P2POp(dist.isend, part, peer) for part, peer in sent]
        if posted:
            for work in dist.batch_isend_irecv(posted):
                work.wait()
