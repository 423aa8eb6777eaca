"""Launchers `srun`, `mpiexec` and `torchrun`: what starts an agent on every node, as an argument list.

Each also takes over the tasks of a job that was started by it: `srun -N 4 benchsuite sweep FILE` is four processes, of
which the first plans and records, and every one is an agent.

Launcher `local` needs no starter: its one agent is a process of this one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchsuite.contract.errors import UserError
from benchsuite.launch.agents import TRIAL, AgentConfig, AgentLauncher
from benchsuite.launch.allocation import Allocation, allocation, asked_ranks_per_node, task
from benchsuite.launch.rendezvous import VARIABLE

OF_OTHER_STEPS = (
    "SLURM_CPU_BIND",
    "SLURM_GPU_BIND",
    "SLURM_GPUS_PER_TASK",
    "SLURM_MEM_PER_",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
)
"""What a job asked for its tasks would hold for agents, which are to have all of a node."""
HANDED_ON = ("CUDA_", "GLOO_", "LD_LIBRARY_PATH", "MKL_", "NCCL_", "OMP_", "PATH", "TMPDIR", "TORCH_", "UCX_")


def srun() -> AgentLauncher:
    """Within a Slurm allocation.

    Raises:
        UserError: not within one, or there is no srun.
    """
    mine = _as_task("srun")
    if mine is not None:
        return mine
    given = allocation()
    if given is None or given.scheduler != "slurm":
        raise UserError("--launcher srun: SLURM_JOB_ID is not set; start it within sbatch or salloc")
    _find("srun", "Slurm")
    nodes = given.num_nodes

    def on_some(names: Sequence[str]) -> tuple[str, ...]:
        return srun_command(replace(given, hosts=tuple(names), num_nodes=len(names)))

    command, ranks = srun_command(given), given.tasks_per_node
    return AgentLauncher(
        AgentConfig("srun", nodes, command, ranks, given.words, nodes, OF_OTHER_STEPS, on_some=on_some)
    )


def srun_command(given: Allocation) -> tuple[str, ...]:
    """One task on each node, with all that the job has there; further steps of the job may run beside.

    Where a node or a task ends, the others go on.
    """
    nodes = str(given.num_nodes)
    cores = (f"--cpus-per-task={given.cores_per_node}",) if given.cores_per_node else ()
    named = (f"--nodelist={','.join(given.hosts)}",) if given.hosts else ()
    gpus = (f"--gpus-per-node={given.gpus_per_node}", "--gpu-bind=none") if given.gpus_per_node else ()
    one_each = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    whole = ("--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--overlap", "--quiet")
    return ("srun", *one_each, *named, *cores, *gpus, *whole, "--no-kill", "--kill-on-bad-exit=0")


def mpiexec() -> AgentLauncher:
    """Start by Open MPI, MPICH or PALS: over the hosts of PBS_NODEFILE, the nodes of a Slurm job, or here.

    Raises:
        UserError: there is no mpiexec, or none that is known.
    """
    mine = _as_task("mpiexec")
    if mine is not None:
        return mine
    path = _find("mpiexec", "Open MPI, MPICH or PALS")
    given = allocation()
    said = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60)
    command = mpiexec_command(said.stdout + said.stderr, given)
    nodes = given.num_nodes if given else 1
    return AgentLauncher(
        AgentConfig("mpiexec", nodes, command, given.tasks_per_node if given else None, _words(given), nodes)
    )


def mpiexec_command(version: str, given: Allocation | None) -> tuple[str, ...]:
    """One process on each node, free to use all its cores.

    Raises:
        UserError: what `mpiexec --version` has said names none that is known.
    """
    count, hosts = str(given.num_nodes if given else 1), ",".join(given.hosts if given else ())
    if "Open MPI" in version or "OpenRTE" in version:
        named = ("--host", hosts) if hosts else ()
        told = [word for name in _told() for word in ("-x", name)]
        return ("mpiexec", "-n", count, *named, "--map-by", "ppr:1:node", "--bind-to", "none", *told)
    if "PALS" in version:
        named = ("--hosts", hosts) if hosts else ()
        return ("mpiexec", "-n", count, "--ppn", "1", *named, "--cpu-bind", "none", "--envall")
    if "HYDRA" in version or "MPICH" in version or "Intel(R) MPI" in version:
        named = ("-hosts", hosts) if hosts else ()
        return ("mpiexec", "-n", count, "-ppn", "1", *named)
    line = version.strip().splitlines()[:1]
    raise UserError(f"mpiexec --version says {line}: allowed: Open MPI, MPICH (Hydra), PALS")


def _told() -> list[str]:
    """Variables that Open MPI has to be asked to hand to other nodes."""
    return [VARIABLE, "PYTHONPATH", *sorted(name for name in os.environ if name.startswith(HANDED_ON))]


def torchrun() -> AgentLauncher:
    """The tasks that torchrun has started on the nodes of a rendezvous; alone, an agent that it starts here."""
    mine = _as_task("torchrun")
    if mine is not None:
        return mine
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--no-python")
    return AgentLauncher(AgentConfig("torchrun", 1, command, words="one process, on this machine"))


def _as_task(starter: str) -> AgentLauncher | None:
    """The launcher of a process that is a task of such a job; None for one that was started alone."""
    mine = task()
    if mine is None or mine.starter != starter or (mine.world_size == 1 and starter != "torchrun"):
        return None
    agent_config = AgentConfig(
        starter,
        mine.world_size,
        ranks_per_node=mine.local_world_size if mine.local_world_size > 1 else asked_ranks_per_node(),
        words=f"task {mine.rank} of {mine.world_size}",
        num_nodes=-(-mine.world_size // mine.local_world_size),
        task=mine,
    )
    return AgentLauncher(agent_config)


def _words(given: Allocation | None) -> str:
    return given.words if given else "no scheduler's job: one process, on this machine"


def _find(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise UserError(f"--launcher {program}: {program} is not installed or not in PATH (it comes with {package})")
    return path


class LocalLauncher(AgentLauncher):
    """One agent, on this machine."""

    def __init__(self, task: str = TRIAL) -> None:
        super().__init__(AgentConfig(words="ranks are forked here"), task)
