"""Where a process stands among the tasks of its job, and which nodes the job has, by the environment alone."""

from pathlib import Path

import pytest

from benchsuite.launch.allocation import Allocation, Task, allocation, task, task_variables
from benchsuite.launch.launcher import suggested

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prte@1",
}
PALS = {
    "PALS_RANKID": "2",
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "PALS_LOCAL_RANKID": "0",
    "PALS_LOCAL_SIZE": "2",
    "PALS_APID": "ab-12",
    "PBS_JOBID": "17.server",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
NODE = {"SLURM_JOB_CPUS_PER_NODE": "96(x2),64", "SLURMD_NODENAME": "n1"}
BATCH = {"SLURM_JOB_ID": "81234", "SLURM_JOB_NUM_NODES": "3", "SLURM_PROCID": "0", **NODE}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, Task("torchrun", 5, 8, 1, 4, "torchrun-n1-29500")),
        (OPEN_MPI, Task("mpiexec", 3, 4, 1, 2, "mpiexec-prte@1")),
        (PALS, Task("mpiexec", 2, 4, 0, 2, "mpiexec-17.server-ab-12")),
        (MPICH, Task("mpiexec", 1, 2, 1, 2, "mpiexec")),
        (STEP, Task("srun", 4, 6, 0, 2, "srun-81234-2")),
        (BATCH, None),
        (STEP | OPEN_MPI, Task("mpiexec", 3, 4, 1, 2, "mpiexec-81234-prte@1")),
        (STEP | TORCHRUN, Task("torchrun", 5, 8, 1, 4, "torchrun-81234-n1-29500")),
        ({"RANK": "0"}, None),
    ],
    ids=["none", "torchrun", "open-mpi", "pals", "mpich", "step", "batch", "mpi-in-slurm", "torchrun-in-slurm", "half"],
)
def test_task(environment: dict[str, str], expected: Task | None) -> None:
    assert task(environment) == expected


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (TORCHRUN, "RANK=5, WORLD_SIZE=8"),
        (STEP, "SLURM_PROCID=4, SLURM_STEP_NUM_TASKS=6"),
        (MPICH, "PMI_RANK=1, PMI_SIZE=2"),
        (STEP | TORCHRUN, "RANK=5, WORLD_SIZE=8"),
        (BATCH, ""),
    ],
)
def test_the_variables_that_say_so(environment: dict[str, str], told: str) -> None:
    assert task_variables(environment) == told


def test_allocations(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("x1\nx1\nx2\nx2\n")
    assert allocation({}) is None
    assert allocation(BATCH) == Allocation("slurm", "81234", (), 3, None, 64)
    asked = allocation(BATCH | {"SLURM_NTASKS_PER_NODE": "4"})
    assert asked is not None and asked.tasks_per_node == 4
    given = allocation({"PBS_NODEFILE": str(hosts), "PBS_JOBID": "17.server"})
    assert given == Allocation("pbs", "17.server", ("x1", "x2"), 2)
    assert given.words == "job 17.server: 2 nodes"


@pytest.mark.parametrize(
    ("environment", "launcher", "why"),
    [
        ({}, "local", "no scheduler's job"),
        (BATCH, "srun", "job 81234: 3 nodes"),
        (BATCH | {"SLURM_JOB_NUM_NODES": "1"}, "local", "job 81234: 1 node, so ranks are forked here"),
        ({"SLURM_JOB_ID": "7"}, "srun", "job 7: 1 node"),
        (STEP, "srun", "this process is task 4 of 6"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, "srun", "job 81234: 3 nodes"),
        (OPEN_MPI, "mpiexec", "this process is task 3 of 4"),
        (TORCHRUN, "torchrun", "this process is task 5 of 8"),
    ],
)
def test_auto_says_why(environment: dict[str, str], launcher: str, why: str) -> None:
    assert suggested(environment) == (launcher, why)


def test_auto_takes_mpiexec_over_the_hosts_of_pbs(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("x1\nx2\n")
    assert suggested({"PBS_NODEFILE": str(hosts), "PBS_JOBID": "17"}) == ("mpiexec", "job 17: 2 nodes")
