"""How a launcher comes by its agents: what starts them, and what they start with."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchsuite.launch.allocation import Task
from benchsuite.launch.rendezvous import VARIABLE

PACKAGE_ROOT = Path(__file__).parents[2]
ZYGOTE = (sys.executable, "-P", "-m", "benchsuite.launch.zygote")


@dataclass(frozen=True)
class AgentConfig:
    """How a launcher comes by its agents."""

    name: str = "local"
    num_agents: int = 1
    starter: tuple[str, ...] = ()
    """What starts the agents' command on every node; empty: this process starts one agent here."""
    ranks_per_node: int | None = None
    """What the user asked the scheduler for; None: as many as a node has room for."""
    words: str = ""
    """Where the agents are, for people."""
    num_nodes: int = 1
    without: tuple[str, ...] = ()
    """Beginnings of environment variables that would change what the starter gives to an agent."""
    task: Task | None = None
    """Of a process that is one of a job's tasks, each of which is to be an agent."""

    @property
    def only_here(self) -> bool:
        """Whether there is one agent, of this process's own."""
        return not self.starter and self.task is None


def agents_environment(where: str | None, without: tuple[str, ...] = ()) -> dict[str, str]:
    """What agents start with, and where their launcher is: an invitation, or the file that holds it.

    Variables that begin with one of `without` are left out.
    """
    # The package need not be installed: agents find it where this process did, not in the current folder.
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(PACKAGE_ROOT)]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    found = {"GOMP_SPINCOUNT": "1000", **kept, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    return found | ({VARIABLE: where} if where else {})


TRIAL = "benchsuite.trial.rank:run_rank"
