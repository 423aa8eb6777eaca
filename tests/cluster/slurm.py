"""What users of a cluster do, and what happens to clusters: jobs are submitted and cancelled, nodes drain and die."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.daemons import NODES, Daemons
from tests.cluster.processes import marked, wait_for

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})
JOB_S = 240.0
POLL_S = 0.2


@dataclass(frozen=True)
class Ran:
    """How a command in an allocation has ended."""

    code: int
    out: str
    err: str


class Slurm:
    """A cluster of the nodes n1 and n2, each of four CPUs."""

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.env = daemons.variables
        """What commands need to reach this cluster."""
        self.own_hosts = daemons.own_hosts
        """Nodes differ in host name and process ids, as other machines would."""

    def call(self, *words: object, env: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands; what it prints."""
        command = [str(word) for word in words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **(env or {}), **self.env},
        )
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path | str, *options: object, env: Mapping[str, str] | None = None) -> int:
        """Submit a script as it stands; the job's id."""
        return int(self.call("sbatch", "--parsable", *options, script, env=env).partition(";")[0])

    def run_in_allocation(
        self,
        nodes: int,
        command: list[str],
        folder: Path,
        *options: object,
        env: Mapping[str, str] | None = None,
        seconds: float = JOB_S,
    ) -> Ran:
        """Run a command on the first of so many nodes, in `folder`, and wait for its end."""
        out, err = folder / "allocation.out", folder / "allocation.err"
        words = ["--parsable", f"--nodes={nodes}", f"--chdir={folder}", f"--output={out}", f"--error={err}", *options]
        job = int(self.call("sbatch", *words, f"--wrap={shlex.join(command)}", env=env))
        ended = self.wait(job, seconds)
        return Ran(int(ended["ExitCode"].partition(":")[0]), out.read_text(), err.read_text())

    def jobs(self, job: int) -> list[dict[str, str]]:
        """What Slurm knows of a job, or of each task of an array."""
        lines = self.call("scontrol", "show", "job", "--oneliner", job).splitlines()
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines]

    def job(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job."""
        (found,) = self.jobs(job)
        return found

    def wait_state(self, job: int, *states: str, seconds: float = JOB_S) -> dict[str, str]:
        """Wait until all of a job is in one of these states."""
        what = f"{' or '.join(states)} of {job}"
        wait_for(lambda: {one["JobState"] for one in self.jobs(job)} <= {*states}, what, seconds, POLL_S)
        return self.jobs(job)[0]

    def wait(self, job: int, seconds: float = JOB_S) -> dict[str, str]:
        """Wait for the end of a job, or of all tasks of an array."""
        return self.wait_state(job, *ENDED, seconds=seconds)

    def cancel(self, job: int) -> None:
        """As a user does, and wait until it is over."""
        self.call("scancel", job)
        self.wait(job)

    def processes(self, job: int) -> list[psutil.Process]:
        """Processes of a job, on any node."""
        return marked(lambda env: self.daemons.has(env) and env.get("SLURM_JOB_ID") == str(job))

    def wait_gone(self, job: int, seconds: float = 15.0) -> list[psutil.Process]:
        """Wait for the end of a job's processes; those that are left."""
        deadline = time.monotonic() + seconds
        while (left := self.processes(job)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def node(self, node: str) -> str:
        """A node's state in words, such as `idle`, `draining`, `down*`."""
        return self.call("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()

    def drain(self, node: str, reason: str = "maintenance") -> None:
        """Let a node take no further job."""
        self.call("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def kill_node(self, node: str) -> None:
        """Let a node die with all that runs there, without a word; then let Slurm know, which would notice in time."""
        self.daemons.kill_node(node)
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=died")

    def recover(self) -> None:
        """Cancel all jobs, and bring all nodes back."""
        for node in filter(self.daemons.is_dead, NODES):
            self.daemons.start_node(node)
        self.call("scancel", "--user=root")
        wait_for(lambda: not self.call("squeue", "--noheader"), "an empty queue", JOB_S, POLL_S)
        wait_for(lambda: all(self._is_back(node) for node in NODES), "nodes that are back", every_s=POLL_S)

    def _is_back(self, node: str) -> bool:
        """Whether a node is free; else it is told to come back. Slurm refuses that where it has come by itself."""
        state = self.node(node)
        if state.startswith(("drain", "down")):
            with suppress(AssertionError):
                self.call("scontrol", "update", f"nodename={node}", "state=resume")
        return state == "idle"

    def wait_idle(self) -> None:
        """Wait until all nodes are there and free."""
        wait_for(lambda: all(self.node(node) == "idle" for node in NODES), "idle nodes", every_s=POLL_S)
