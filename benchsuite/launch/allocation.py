"""What the environment says of how this process was started: its place among a job's tasks, and the job's nodes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchsuite.launch.registry import LOOKED_FOR, TaskVariables, launcher_of
from benchsuite.results.render.words import counted


@dataclass(frozen=True)
class Task:
    """One of several processes that something else has started for one job."""

    starter: str
    """The name of the launcher that did."""
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job: str
    """The job's name: the same for all its tasks, and for no other job that runs."""


@dataclass(frozen=True)
class Allocation:
    """What a scheduler has given to this job."""

    scheduler: str
    job_id: str
    hosts: tuple[str, ...] = ()
    """The hosts' names, where the allocation tells them."""
    num_nodes: int = 1
    tasks_per_node: int | None = None
    cores_per_node: int | None = None
    """Cores of the node that has fewest."""
    gpus_per_node: int | None = None

    @property
    def words(self) -> str:
        """Such as `job 81234: 8 nodes`."""
        return f"job {self.job_id}: {counted(self.num_nodes, 'node')}"


RANKS_VARIABLE = "BENCHSUITE_JOB_RANKS_PER_NODE"
"""How many ranks a node takes, in a job whose script starts the sweep by one task on each node."""


def task(environment: Mapping[str, str] = os.environ) -> Task | None:
    """This process's place among the tasks of its job; None where it was started alone."""
    shown = _variables(environment)
    if shown is None:
        return None
    launcher = launcher_of(shown)
    names = (environment.get(name, "") for name in ("SLURM_JOB_ID", "PBS_JOBID", *shown.job))
    return Task(
        launcher,
        int(environment[shown.rank]),
        _number(environment, shown.num_tasks) or 1,
        _number(environment, shown.local_rank) or 0,
        _number(environment, shown.local_num_tasks) or 1,
        "-".join([launcher, *filter(None, names)]).replace("/", "_"),
    )


def asked_ranks_per_node(environment: Mapping[str, str] = os.environ) -> int | None:
    """What a job's script says of the ranks of a node; None where it says nothing."""
    return _number(environment, RANKS_VARIABLE)


def task_variables(environment: Mapping[str, str] = os.environ) -> str:
    """What says that this process is one of a job's tasks, such as `RANK=1, WORLD_SIZE=4`; nothing where it is none."""
    shown = _variables(environment)
    names = (shown.rank, shown.num_tasks) if shown else ()
    return ", ".join(f"{name}={environment[name]}" for name in names)


def _variables(environment: Mapping[str, str]) -> TaskVariables | None:
    """The variables that show this process's place among the tasks of its job; None where it was started alone."""
    # from the end: where both decide, torchrun is a task of the other
    decided = [each for each in reversed(LOOKED_FOR) if each.decided_by and each.decided_by in environment][:1]
    given = (each for each in decided or LOOKED_FOR if environment.get(each.rank, "").isdigit())
    return next((each for each in given if _number(environment, each.num_tasks)), None)


def allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """What a scheduler has given to this job; None outside of one."""
    if environment.get("SLURM_JOB_ID"):
        return Allocation(
            "slurm",
            environment["SLURM_JOB_ID"],
            num_nodes=_number(environment, "SLURM_JOB_NUM_NODES") or 1,
            tasks_per_node=_number(environment, "SLURM_NTASKS_PER_NODE"),
            cores_per_node=_least(environment.get("SLURM_JOB_CPUS_PER_NODE", "")),
            gpus_per_node=_number(environment, "SLURM_GPUS_ON_NODE"),
        )
    if environment.get("PBS_NODEFILE"):
        hosts = tuple(dict.fromkeys(Path(environment["PBS_NODEFILE"]).read_text(encoding="utf-8").split()))
        return Allocation("pbs", environment.get("PBS_JOBID", "?"), hosts, len(hosts))
    return None


def _least(text: str) -> int | None:
    """The least of what Slurm writes as `64(x3),32`: none of a step's tasks may ask for more."""
    found = [int(part.partition("(")[0]) for part in text.split(",") if part.partition("(")[0].isdigit()]
    return min(found, default=None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """The number that a variable begins with: Slurm writes `2(x3)` for twos on three nodes."""
    text = environment.get(name, "").partition("(")[0].partition(",")[0]
    return int(text) if text.isdigit() else None
