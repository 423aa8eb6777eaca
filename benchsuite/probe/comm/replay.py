"""Replay a step table without a network: whose inputs make up each rank's chunks after every round of messages."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray

from benchsuite.probe.comm.step_tables import Range, Receive, Step, Table

Held = NDArray[np.int_]
"""[rank, chunk, contributor]: how often a contributor's input is in what a rank has of a chunk."""


def replay(found: Table) -> Iterator[tuple[str, Held]]:
    """Yield, after each round of messages, the name of its phase and what ranks hold.

    In a round pass all messages at which sender and receiver both stand (rendezvous), so that what is replayed to its
    end cannot deadlock whatever is buffered.

    Raises:
        AssertionError: the table deadlocks, or the ends of a message mean different chunks.
    """
    held = np.zeros((found.num_ranks, found.num_chunks, found.num_ranks), dtype=int)
    for rank in range(found.num_ranks):
        held[rank, :, rank] = 1
    for phase in found.phases:
        ranks = [_Rank(steps) for steps in phase.steps]
        while any(rank.step for rank in ranks):
            assert _exchanged(ranks, held), f"deadlock in {phase.name}: ranks stand at {[rank.at for rank in ranks]}"
            if _completed(ranks, held):
                yield phase.name, held.copy()


def in_words(found: Table) -> str:
    """A row per round and a column per rank: of each chunk the ranks (a, b, ...) whose inputs are added up in it.

    For at most 26 ranks.
    """
    begin = np.repeat(np.eye(found.num_ranks, dtype=int)[:, None], found.num_chunks, axis=1)
    rows = [["", *(f"rank {letter}" for letter in ascii_lowercase[: found.num_ranks])]]
    for name, held in [("at the start", begin), *replay(found)]:
        rows.append([name, *(" ".join(map(_letters, chunks)) for chunks in held)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _letters(contributors: NDArray[np.int_]) -> str:
    return "".join(ascii_lowercase[rank] * count for rank, count in enumerate(contributors.tolist()))


@dataclass
class _Rank:
    """A rank on its way through a phase."""

    steps: tuple[Step, ...]
    at: int = 0
    arrived: list[tuple[Receive, Held]] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    """Peers that have got this step's messages."""

    @property
    def step(self) -> Step | None:
        """What the rank has posted; None at the end."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    def awaits(self, peer: int) -> Receive | None:
        """The message that it waits for from a peer."""
        got = {receive.peer for receive, _ in self.arrived}
        wanted = [one for one in (self.step.receives if self.step else ()) if one.peer == peer and peer not in got]
        return wanted[0] if wanted else None


def _exchanged(ranks: list[_Rank], held: Held) -> bool:
    """Pass every message whose ends both wait for it; whether any did."""
    moved = False
    for number, rank in enumerate(ranks):
        for send in rank.step.sends if rank.step else ():
            receive = ranks[send.peer].awaits(number)
            if receive is None or send.peer in rank.sent:
                continue
            assert receive.chunks == send.chunks, "both ends must mean the same chunks"
            ranks[send.peer].arrived.append((receive, held[number, slice(*send.chunks)].copy()))
            rank.sent.add(send.peer)
            moved = True
    return moved


def _completed(ranks: list[_Rank], held: Held) -> bool:
    """Let ranks whose step is done go on, with what has arrived; whether any did."""
    done = [number for number, rank in enumerate(ranks) if rank.step and _is_done(rank, rank.step)]
    for number in done:
        rank = ranks[number]
        for receive, content in rank.arrived:
            target: Range = receive.chunks
            held[number, slice(*target)] = content + (held[number, slice(*target)] if receive.adds else 0)
        rank.arrived, rank.sent, rank.at = [], set(), rank.at + 1
    return bool(done)


def _is_done(rank: _Rank, step: Step) -> bool:
    return len(rank.arrived) == len(step.receives) and len(rank.sent) == len(step.sends)
