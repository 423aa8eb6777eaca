"""How a trial's processes ended: what a launcher tells those who judge a trial."""

from dataclasses import dataclass, field
from typing import Any

from benchsuite.results.store.shapes import DeviceSamples


@dataclass(frozen=True)
class RankExit:
    """How a rank ended before its launcher ended the rest: exit code, or the signal that killed it."""

    rank: int
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a trial's processes ended."""

    exits: list[RankExit] = field(default_factory=list)
    timed_out: bool = False
    interrupted: bool = False
    out_of_memory: bool = False
    """The kernel killed a process for memory meanwhile."""
    launcher_error: str | None = None
    foreign_cores: float | None = None
    """Cores that other processes kept busy meanwhile, of the node where that was most; None where nobody can tell."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """Caveats: what agents of other nodes have found there before and after it, by name and in words."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of rank 0's host, where none of the ranks was on this one."""
    launcher: str | None = None
    nodes: list[dict[str, Any]] = field(default_factory=list)
    """Node by node: its name, its first and last rank, its cores, and those of them that others kept busy."""

    devices: list[DeviceSamples] = field(default_factory=list)
    """What the devices of the ranks did from launch to end, as agents have read it once a second."""

    def is_clean(self, num_ranks: int) -> bool:
        """Whether every rank ended by itself and well."""
        return len(self.exits) == num_ranks and all(ended.code == 0 for ended in self.exits)

    @property
    def env(self) -> dict[str, Any]:
        """What a record's environment has of the nodes; empty where all ranks were on this one."""
        if not self.nodes:
            return {}
        return self.facts | {"launcher": self.launcher, "nodes": self.nodes, "cores": self.nodes[0]["cores"]}
