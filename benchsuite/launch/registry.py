"""All that is known of each launcher of ours, a row each; every list of their names elsewhere follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskVariables:
    """The environment variables by which a process knows its place among the tasks that a launcher has started."""

    rank: str
    num_tasks: str
    local_rank: str
    local_num_tasks: str
    job: tuple[str, ...]
    """What names the job, besides its scheduler's id."""
    decided_by: str = ""
    """A variable that, where it is set, says that these are the ones, whatever else is set.

    torchrun may itself be a task of something else, and Slurm counts each node of Hydra's tasks as a task of its own.
    """


@dataclass(frozen=True)
class KnownLauncher:
    """A launcher of ours."""

    start: str
    """Where it is made, as `module:name`."""
    variables: tuple[TaskVariables, ...] = ()
    """By which it shows in the environment of a task that it has started."""
    scheduler: str | None = None
    """Whose jobs of several nodes suggest it."""
    messages: tuple[str, ...] = ()
    """How its own lines among those of its agents begin."""


OPEN_MPI = TaskVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("PMIX_NAMESPACE",),
)
PALS = TaskVariables("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", ("PALS_APID",))
HYDRA = TaskVariables(
    "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PBS_JOBID",), decided_by="MPI_LOCALRANKID"
)
SLURM = TaskVariables(
    "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", ("SLURM_STEP_ID",)
)
ELASTIC = TaskVariables(
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    ("MASTER_ADDR", "MASTER_PORT"),
    decided_by="TORCHELASTIC_RUN_ID",
)
STARTERS = "benchsuite.launch.starters"

LOOKED_FOR = (OPEN_MPI, PALS, SLURM, HYDRA, ELASTIC)
"""Where a task shows several, the first counts.

`mpiexec` starts its tasks by steps of Slurm, `srun --mpi=pmi2` sets PMI_RANK, and anything may set RANK.
"""

LAUNCHERS: Mapping[str, KnownLauncher] = {
    "local": KnownLauncher(f"{STARTERS}:LocalLauncher"),
    "torchrun": KnownLauncher(f"{STARTERS}:torchrun", (ELASTIC,)),
    "srun": KnownLauncher(f"{STARTERS}:srun", (SLURM,), "slurm", ("srun:", "slurmstepd:")),
    "mpiexec": KnownLauncher(
        f"{STARTERS}:mpiexec", (OPEN_MPI, PALS, HYDRA), "pbs", ("Primary job", "---", "prterun", "mpiexec")
    ),
}


def launcher_of(variables: TaskVariables) -> str:
    """The name of the launcher that sets these."""
    return next(name for name, known in LAUNCHERS.items() if variables in known.variables)
