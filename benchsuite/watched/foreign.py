"""How many cores others kept busy on the nodes of watched ranks: what the kernel counted, less the ranks' own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchsuite.watched.figures import RankLoop, Told

MIN_WALL_S = 0.5
"""The kernel counts CPU time in ticks of 10 ms: of a shorter loop it is not told who else kept cores busy."""


def foreign_cores(ranks: "Sequence[RankLoop]", told: "Told") -> tuple[float, int] | None:
    """Cores that others kept busy, and of how many, on the node where it is most.

    None where it is not known: ranks that were not heard of, or loops too short for the kernel's counters.
    """
    if told.ranks_missing or told.ranks_apart or any(rank.everyone_cpu_s is None or not rank.cpus for rank in ranks):
        return None
    if min(rank.wall_s for rank in ranks) < MIN_WALL_S:
        return None
    nodes: dict[str, list[RankLoop]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    return max(_of_node(here) for here in nodes.values())


def _of_node(ranks: "Sequence[RankLoop]") -> tuple[float, int]:
    """Of one node; ranks that may use the same cores see the same load."""
    busy: dict[tuple[int, ...], float] = {}
    for rank in ranks:
        busy[rank.cpus] = max(busy.get(rank.cpus, 0.0), (rank.everyone_cpu_s or 0.0) / rank.wall_s)
    own = sum((rank.own_cpu_s or 0.0) / rank.wall_s for rank in ranks)
    return max(0.0, sum(busy.values()) - own), len({cpu for cpus in busy for cpu in cpus})
