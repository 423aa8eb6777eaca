"""Batch scripts of sweeps, for Slurm and PBS: pure text.

Whatever a user gives is quoted, and refused where it holds a line break, so that nothing leaves its line.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import REQUEUE
from benchsuite.host.site import JobSpec
from benchsuite.launch.allocation import RANKS_VARIABLE, Allocation
from benchsuite.launch.starters import OF_OTHER_STEPS, srun_command

Scheduler = Literal["slurm", "pbs", "kubernetes"]
WARNING_S = 120
"""A job is told to stop so long before its limit; one that is shorter than twice this, in the middle."""
Directive = tuple[str, str, str | None]
"""A directive's name, the option that sets it, and its value: empty where it has none, None where it is left out."""


@dataclass(frozen=True)
class Job:
    """One batch job of a sweep."""

    name: str
    """The name of the job and of its script."""
    nodes: int
    ranks_per_node: int
    words: list[str]
    """The sweep's command line, without the container."""
    store: Path
    folder: Path
    """Where the sweep runs: relative paths start there."""
    out: Path
    """Where the script and the job's output lie."""
    num_tasks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the sweep needs besides the store's."""
    search: Path | None = None
    """Folder of the benchsuite command, for jobs that find none on PATH."""
    kind: str = ""
    """What tells its script from others in one folder: `slurm`, `pbs-array`."""

    @property
    def script(self) -> Path:
        """The script's path."""
        ending = "yaml" if self.kind.startswith("kubernetes") else "sh"
        return self.out / ".".join(filter(None, [self.name, self.kind, ending]))


def job_name(*words: str) -> str:
    """A name that every scheduler takes: letters, digits, `_`, `.` and `-`, a letter first, 100 at most."""
    joined = "-".join(["bs", *words])
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", joined)[:100]


def write(scheduler: Scheduler, job: Job, spec: JobSpec) -> str:
    """The script of a job.

    Raises:
        UserError: a value holds a line break, or is nothing that this scheduler takes.
    """
    lines = ["#!/bin/bash", *_directives(scheduler, job, spec), "set -euo pipefail", "", *_surroundings(job, spec), ""]
    return "\n".join([*lines, *_run(scheduler, job, spec), *_requeue(scheduler, job, spec), 'exit "$code"', ""])


def quoted(text: str, what: str = "job script") -> str:
    """A word of a shell line.

    Raises:
        UserError: it holds a line break or another control character.
    """
    return shlex.quote(_one_line(text, what))


def _one_line(text: str, what: str) -> str:
    if any(ord(letter) < 32 or ord(letter) in (127, 0x85, 0x2028, 0x2029) for letter in text):
        raise UserError(f"{what}: {text!r} holds a line break or a control character; give one line")
    return text


def _directives(scheduler: Scheduler, job: Job, spec: JobSpec) -> Iterator[str]:
    """Our directives, and those that a user adds.

    Raises:
        UserError: one that is added is no name of one, or one of ours.
    """
    ours = _slurm(job, spec) if scheduler == "slurm" else _pbs(job, spec)
    asked = [(name, value, option) for name, option, value in ours if value is not None]
    options = {name: option for name, option, _ in ours}
    for name, value in spec.options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise UserError(f"--directive {name!r}: give KEY=VALUE, such as --directive reservation=maintenance")
        if name in options:
            raise UserError(f"--directive {name}: is written already, by {options[name]}")
        asked.append((name, value or "", f"--directive {name}"))
    for name, value, option in asked:
        if scheduler == "slurm":
            start, joint = "#SBATCH --", "="
        else:
            start, joint = ("#PBS -", " ") if len(name) == 1 else ("#PBS -l ", "=")
        yield f"{start}{name}" + (f"{joint}{quoted(value, option)}" if value else "")


def _slurm(job: Job, spec: JobSpec) -> list[Directive]:
    number = "%A_%a" if job.num_tasks > 1 else "%j"
    warning_s = min(WARNING_S, (spec.time_s or 2 * WARNING_S) // 2)
    return [
        ("job-name", "the sweep's name", job.name),
        ("nodes", "--nodes", str(job.nodes)),
        ("ntasks-per-node", "--ranks-per-node", str(job.ranks_per_node)),
        ("cpus-per-task", "--cpus-per-rank", None if spec.cpus_per_rank is None else str(spec.cpus_per_rank)),
        ("time", "--time", spec.time),
        ("account", "--account", spec.account),
        ("partition", "--partition", spec.partition),
        ("qos", "--qos", spec.qos),
        ("constraint", "--constraint", spec.constraint),
        ("gres", "--gres", spec.gres),
        ("array", "--mode array", f"1-{job.num_tasks}" if job.num_tasks > 1 else None),
        ("output", "--out", f"{str(job.out).replace('%', '%%')}/{job.name}-{number}.out"),
        ("signal", "no other", f"B:USR1@{warning_s}"),
        ("requeue", "--max-requeues", ""),
        ("open-mode", "no other", "append"),
    ]


def _pbs(job: Job, spec: JobSpec) -> list[Directive]:
    if spec.qos is not None:
        raise UserError(f"--qos {spec.qos!r}: PBS has none; give the queue with --partition, or --directive KEY=VALUE")
    cores = job.ranks_per_node * (spec.cpus_per_rank or 1)
    chunk = [str(job.nodes), f"ncpus={cores}", f"mpiprocs={job.ranks_per_node}"]
    for what, value in (("--gres", spec.gres), ("--constraint", spec.constraint)):
        if value is not None and not re.fullmatch(r"\w+=[\w.-]+(:\w+=[\w.-]+)*", value):
            raise UserError(f"{what} {value!r}: PBS takes NAME=VALUE of each chunk, such as ngpus=4")
        chunk += [value] if value is not None else []
    return [
        ("N", "the sweep's name", job.name),
        ("select", "--nodes", ":".join(chunk)),
        ("A", "--account", spec.account),
        ("q", "--partition", spec.partition),
        ("o", "--out", f"{job.out}/"),
        ("walltime", "--time", spec.walltime),
        ("J", "--mode array", None),  # which `submit` gives to qsub, so that a requeued task is one job
        ("r", "no other", "y"),
        ("j", "no other", "oe"),
    ]


def _surroundings(job: Job, spec: JobSpec) -> Iterator[str]:
    """Modules, setup, the folder and the environment of the sweep."""
    if spec.modules or spec.setup:
        yield "set +u # modules and activation scripts read variables that are not set"
        yield from (f"module load {quoted(name, 'modules')}" for name in spec.modules)
        yield from (_one_line(line, "setup") for line in spec.setup)
        yield "set -u"
    if job.search is not None and not spec.container:
        yield f'export PATH="$PATH":{quoted(str(job.search), "PATH")}'
    for name, value in {**job.environment, "BENCHSUITE_STORE": str(job.store)}.items():
        yield f"export {name}={quoted(value, name)}"
    yield f"cd {quoted(str(job.folder), 'folder')}"


def _run(scheduler: Scheduler, job: Job, spec: JobSpec) -> Iterator[str]:
    """The sweep in the background, so that signals reach it while the script waits for its end."""
    words, spread = [*spec.container, *job.words], _starts_on_nodes(scheduler, job, spec)
    if spread:
        words = [*_one_on_each_node(job, spec), *words]
        yield from _environment_of_step(job)
    if scheduler == "pbs" and spec.time_s:
        left_s = max(spec.time_s - WARNING_S, spec.time_s // 2)
        warned = ["timeout", "--foreground", "--preserve-status", "--signal=USR1", str(left_s)]
        words = [*warned, *words, "--until", f"+{left_s}s"]
    yield 'sweep="" signalled="" cancelled="" missed=""'
    for name, note in (("USR1", ""), ("TERM", " cancelled=yes")):
        told = "USR1" if spread else name  # srun passes it on; at SIGTERM it kills its tasks. A sweep ends at either
        yield f"trap 'signalled=yes{note}; kill -s {told} \"$sweep\" 2>/dev/null || missed={told}' {name}"
    yield f"{' '.join(quoted(word) for word in words)} &"
    yield "sweep=$!"
    yield 'if [ -n "$missed" ]; then kill -s "$missed" "$sweep" 2>/dev/null || true; fi # it came before the number'
    yield "while :; do"
    yield '  signalled="" code=0'
    yield '  wait "$sweep" || code=$?'
    yield '  if [ -z "$signalled" ]; then break; fi # else a signal has ended the wait, not the sweep'
    yield "done"


def _starts_on_nodes(scheduler: Scheduler, job: Job, spec: JobSpec) -> bool:
    """Whether a task of the sweep is started on each node, since a container can start nothing on other nodes.

    One of the tasks plans and records, and all of them are agents.
    """
    return scheduler == "slurm" and bool(spec.container) and job.nodes > 1


def _one_on_each_node(job: Job, spec: JobSpec) -> tuple[str, ...]:
    cores = spec.cpus_per_rank and job.ranks_per_node * spec.cpus_per_rank
    given = Allocation("slurm", "", num_nodes=job.nodes, cores_per_node=cores, gpus_per_node=spec.gpus_per_node)
    return srun_command(given)


def _environment_of_step(job: Job) -> Iterator[str]:
    """Take away what the job asked for its own tasks, and tell the sweep how many ranks a node takes."""
    beginnings = " ".join(f'"${{!{name}@}}"' for name in OF_OTHER_STEPS)
    yield f'for name in {beginnings}; do unset "$name"; done'
    yield f"export {RANKS_VARIABLE}={job.ranks_per_node}"


def _requeue(scheduler: Scheduler, job: Job, spec: JobSpec) -> Iterator[str]:
    if not spec.max_requeues:
        return
    yield f"# {REQUEUE}: stopped early, trials are left; the next run goes on in the same session (not when cancelled)"
    if scheduler == "slurm":
        times = "${SLURM_RESTART_COUNT:-0}"
        # The id of an array's first task stands for all: this names one.
        task = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.num_tasks > 1 else "$SLURM_JOB_ID"
        call = f'scontrol requeue "{task}"'
    else:
        yield "# a new job runs this script, since PBS lets none but operators requeue one (qrerun)"
        times = "${REQUEUES:-0}"
        after = "" if job.num_tasks > 1 else '-W depend=afterany:"$PBS_JOBID" '
        call = f"qsub -v REQUEUES=$((${{REQUEUES:-0}} + 1)) {after}{quoted(str(job.script), 'script')}"
    yield f'if [ "$code" -eq {REQUEUE} ] && [ -z "$cancelled" ] && [ "{times}" -lt {spec.max_requeues} ]; then'
    yield f"  {call}"
    yield "fi"
