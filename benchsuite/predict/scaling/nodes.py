"""On how many nodes ranks stand, by a series' records, and what was measured of the network between nodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats

Row = Mapping[str, Any]
SLOWER = 24.0
"""Times that a device's share of its node's network is slower than its links in the node, at most among the machines
that come with benchsuite (300 GB/s beside 12.5): how slow an exchange may get over a network nobody has measured."""


@dataclass(frozen=True)
class Placement:
    """Nodes of the measured scales by ranks, and how many ranks a node takes."""

    nodes: Mapping[int, int] = field(default_factory=dict)
    room: float | None = None
    """None: not known."""
    probed: bool = False
    """Collectives were probed over several nodes, so that the network between them is known."""

    def at(self, ranks: float) -> int:
        """Nodes of so many ranks: as measured, else as many as they fill; 1 where nothing tells."""
        known = self.nodes.get(int(ranks)) if ranks == int(ranks) else None
        if known is not None:
            return known
        return 1 if self.room is None else math.ceil(ranks / self.room - 1e-9)

    def counts(self, ranks: Floats) -> Floats:
        """Nodes of each number of ranks, (n,)."""
        return np.array([float(self.at(float(count))) for count in ranks])

    def within(self, ranks: Floats) -> Floats:
        """Ranks of each that exchange within one node, where scales tell that apart; else all, (n,)."""
        return np.minimum(ranks, self.room or np.inf) if self.crosses else ranks

    @property
    def crosses(self) -> bool:
        """Whether scales of several ranks lie on one node and others, the largest among them, on several."""
        counts = {ranks: count for ranks, count in self.nodes.items() if ranks > 1}
        return bool(counts) and min(counts.values()) == 1 < counts[max(counts)]

    def is_unmeasured(self, ranks: float) -> bool:
        """Whether so many ranks exchange over a network between nodes that nothing was measured of."""
        return not self.probed and max(self.nodes.values(), default=1) == 1 < self.at(ranks)


UNTOLD = Placement()


def placement_of(rows: Sequence[Row]) -> Placement:
    """The placement of a series' trials, as their records tell."""
    nodes = {int(row["spec.world_size"]): _nodes_of(row) for row in rows}
    most = max(nodes, default=1)
    return Placement(nodes, most / nodes[most] if nodes.get(most, 1) > 1 else _room(rows))


def _nodes_of(row: Row) -> int:
    """Nodes of a trial; 1 where its record tells none."""
    return len(row.get("env.nodes") or ()) or int(row.get("spec.nodes") or 1)


def _room(rows: Sequence[Row]) -> float | None:
    """Ranks that one node has devices or cores for; None where that is not told, or differs as cores of jobs do."""
    found = {_room_of(row) for row in rows}
    room = found.pop() if len(found) == 1 else None
    return None if room is None else max(room, *(int(row["spec.world_size"]) for row in rows))


def _room_of(row: Row) -> int | None:
    if row.get("spec.device") == "cuda":
        return len(row.get("env.devices") or ()) or None
    cores = row.get("env.cores")
    if row.get("spec.device", "cpu") != "cpu" or cores is None:
        return None
    return int(cores) // int(row.get("spec.threads_per_rank") or 1)


def unmeasured_s(
    placement: Placement, slow: Callable[[Floats], Floats] | None, ranks: int, communication_s: float, network: float
) -> float:
    """How much longer exchange of `communication_s` may take where it leaves the one node that was measured.

    `slow`: exposed seconds by ranks over a network SLOWER times as slow; None: all of the exchange is exposed.
    """
    if not placement.is_unmeasured(ranks):
        return 0.0
    if slow is None:
        return (SLOWER - 1) * communication_s
    return max(float(slow(np.array([float(ranks)]))[0]) / network - communication_s, 0.0)


def in_words(placement: Placement, ranks: Sequence[int]) -> list[str]:
    """What is said of the nodes that predicted ranks need."""
    beyond = [count for count in ranks if placement.is_unmeasured(count)]
    if beyond:
        return [
            f"warning: all scales lie on one node, {beyond[0]} ranks need {placement.at(beyond[0])}, and nothing was "
            f"measured of the network between nodes: exchange is predicted as within a node; the interval's slow end "
            f"assumes that exchange takes {SLOWER:g} times as long; measure two nodes, or `probe comm` over them"
        ]
    if placement.crosses:
        return ["exchange within a node and between nodes are fitted apart"]
    if placement.probed and max(placement.nodes.values(), default=1) == 1 < placement.at(max(ranks, default=1)):
        return ["all scales lie on one node; exchange between nodes as `probe comm` found it over several"]
    return []
