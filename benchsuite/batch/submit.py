"""`benchsuite submit`: check a sweep's plan, write its job scripts and hand them to the scheduler."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchsuite.batch.job_script import Job, Scheduler, job_name, write
from benchsuite.batch.kubernetes import manifest
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import NOTHING_RAN, OK
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import echo
from benchsuite.grid import expand
from benchsuite.grid.layers import environment_fields, find_sweep_file
from benchsuite.grid.point import Plan, Point
from benchsuite.host.machine import this_machine
from benchsuite.host.site import JobSpec, job_defaults, parse_job
from benchsuite.inside.files import read_plain, write_new
from benchsuite.launch.launcher import check_name
from benchsuite.results.render.words import counted, typed
from benchsuite.results.store.place import folder_in, share
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.durations import Durations, cost, describe_cost, durations_of
from benchsuite.runner.sweep import nothing_runs_error, session_status

COMMANDS = {"slurm": ("sbatch", "--parsable"), "pbs": ("qsub",), "kubernetes": ("kubectl", "apply", "-f")}
PACKAGES = {"slurm": "slurm-client", "pbs": "openpbs-client"}
CONFIG_VARIABLES = ("BENCHSUITE_SITE", "BENCHSUITE_USER_CONFIG")
NO_TIME = "warning: no --time: the cluster's default ends the job, often after minutes; give --time HH:MM:SS"
FOLLOWS = "the number of nodes follows from world_size and --ranks-per-node"
CORES_OTHERWISE = {"exclusive", "cpus-per-gpu"}
"""Directives of Slurm with which a rank's cores do not follow from --cpus-per-task alone."""
MANY_DEVICES = MANY_NODES = 1 << 20
"""What a plan is checked against where the nodes of the job and their devices are not known here."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for, besides what a job asks its scheduler for."""

    file: Path
    session: str
    store: Path
    overrides: list[str]
    words: list[str]
    """Options of the sweep as they are typed, which its jobs get unread; overrides are among them."""
    dry_run: bool
    out: Path | None


def submit(scheduler: Scheduler, request: Request, given: dict[str, Any], options: list[str]) -> int:
    """Write the scripts of a sweep's jobs and, but for a dry run, submit them; the exit code.

    `given` are the fields of a JobSpec that the command line names, above those of the site's and user's file.

    Raises:
        UserError: one line about the first problem; nothing was submitted then.
    """
    check_session(request.session)
    spec = job_spec(given, options)
    check_name(spec.launcher)
    if scheduler == "kubernetes" and not request.dry_run:
        raise UserError("kubernetes: the manifest is written by --dry-run; hand it in yourself (kubectl apply -f FILE)")
    if not request.dry_run:
        _check_installed(scheduler)
    plan = planned(request, spec)
    if not plan.points:
        echo(f"error: {nothing_runs_error(plan)}", err=True)
        return NOTHING_RAN
    # Scripts of a sweep's jobs lie in one folder: an array's sweeps share their trials, a single job's do not.
    kind = f"{scheduler}-array" if spec.mode == "array" else scheduler
    made = [(replace(job, kind=kind), points) for job, points in jobs(request, spec, plan)]
    text_of = manifest if scheduler == "kubernetes" else partial(write, scheduler)
    scripts = [(job, points, text_of(job, spec)) for job, points in made]
    if spec.time is None and scheduler != "kubernetes":  # which ends no job by itself
        echo(NO_TIME, err=True)
    for note in cores_notes(scheduler, spec, plan):
        echo(note, err=True)
    store = ResultsStore(request.store)
    known = durations_of(store.outcomes().values(), plan)
    todo = [item.point for item in session_status(plan, store, request.session).todo]
    for job, points, text in scripts:
        echo(_shape(job, spec, plan), err=True)
        own = {point.point_id for point in points}
        echo(*expected([point for point in todo if point.point_id in own], known, job.num_tasks, spec), err=True)
        _write(job, text)
        command = _command(scheduler, job)
        if request.dry_run:
            echo(*text.splitlines(), f"submit it: {typed(*command)}", err=True)
        echo(f"written: {job.script}" if request.dry_run else _submitted(command, job))
    return OK


def cores_notes(scheduler: Scheduler, spec: JobSpec, plan: Plan) -> list[str]:
    """What a rank of a job has where nobody says how many cores, and what to give."""
    if spec.cpus_per_rank or scheduler == "kubernetes" or CORES_OTHERWISE & spec.options.keys():
        return []
    given, notes = gives_threads(plan), []
    fixed = given or spec.mode == "per-world-size"  # whose scripts say it
    specs = [point.spec for point in plan.points]
    loaders = [spec.data.num_workers if spec.data.source == "storage" else 0 for spec in specs]
    needs = [(spec.threads_per_rank or 1 if fixed else 1, num) for spec, num in zip(specs, loaders, strict=True)]
    threads, workers = max(needs, key=sum)
    if threads + workers > 1:
        has = "Slurm's default, 1 core on most sites" if scheduler == "slurm" else "1 core"
        what = f"{counted(threads, 'thread')} and {counted(workers, 'loader worker')}"
        notes.append(
            f"note: no --cpus-per-rank: a rank has {has}; the trials have up to {what}: give "
            f"--cpus-per-rank {threads + workers}"
        )
    if spec.mode == "per-world-size" and not given:
        notes.append(
            f"note: no threads_per_rank: every job has {plan.points[0].spec.threads_per_rank}, by the "
            f"{counted(this_machine().cores, 'core')} of this machine, so that all world sizes have as many; for nodes "
            "with other cores give --cpus-per-rank N, or -o threads_per_rank=N"
        )
    return notes


def gives_threads(plan: Plan) -> bool:
    """Whether the sweep says how many threads a rank has, so that they do not follow from a machine's cores."""
    sweep = plan.sweep
    return "threads_per_rank" in {*sweep.base, *sweep.grid, *sweep.zip, *(key for one in sweep.include for key in one)}


def expected(todo: Sequence[Point], known: Durations, sweeps: int, spec: JobSpec) -> list[str]:
    """How long a job may take, by what its trials took before, and whether its limit is shorter."""
    if not todo:
        return ["time: nothing is left to do in this session"]
    told, found = [f"time: {describe_cost(todo, known, sweeps)}"], cost(todo, known)
    if found is not None and spec.time_s is not None and found.time_s / sweeps > spec.time_s:
        told.append(f"note: longer than --time {spec.time}: the job stops in time, is queued again and goes on")
    return told


def job_spec(given: dict[str, Any], options: list[str]) -> JobSpec:
    """A job's settings: the command line's above the user's above the site's.

    Raises:
        UserError: one is not allowed, or has no meaning beside another.
    """
    merged = job_defaults()
    added = {key: value if equals else None for key, equals, value in (text.partition("=") for text in options)}
    spec = parse_job(merged | given | {"options": merged.get("options", {}) | added})
    if "array_tasks" in given and spec.mode != "array":
        raise UserError(f"--array-tasks {spec.array_tasks} with --mode {spec.mode}; allowed with --mode array")
    if "nodes" in given and spec.mode == "per-world-size":
        raise UserError(f"--nodes {spec.nodes} with --mode per-world-size: {FOLLOWS}: leave --nodes out")
    return spec


def planned(request: Request, spec: JobSpec, extra: list[str] | None = None) -> Plan:
    """The plan of a sweep on the nodes of a job, whose devices this host may lack."""
    sweep = expand.load_sweep(find_sweep_file(request.file), [*request.overrides, *(extra or [])])
    here = replace(this_machine(), nodes=spec.nodes or MANY_NODES)
    many = replace(here, cuda_devices=MANY_DEVICES, elsewhere=True)
    if here.cuda_devices or spec.gpus_per_node or "gpu" in (spec.gres or ""):
        here = many
    plan = expand.expand(sweep, here, request.store)
    if not plan.points:
        here = many
        plan = expand.expand(sweep, here, request.store)
    if not plan.points or spec.nodes:
        return plan
    # The default of threads_per_rank follows from how many ranks share a node of the largest trial.
    return expand.expand(sweep, replace(here, nodes=_nodes_of(plan.points, spec)), request.store)


def _nodes_of(points: Sequence[Point], spec: JobSpec) -> int:
    """Nodes that the largest trial needs."""
    usual, _ = ranks_a_node(spec, points)
    return max(math.ceil(point.spec.ranks / (point.spec.ranks_per_node or usual)) for point in points)


def ranks_a_node(spec: JobSpec, points: Sequence[Point]) -> tuple[int, str]:
    """How many ranks of a trial a node takes where the trial does not say, and why so many."""
    largest = max(point.spec.ranks for point in points)
    if spec.ranks_per_node is not None:
        return spec.ranks_per_node, "as asked for"
    if spec.gpus_per_node is not None:
        return min(spec.gpus_per_node, largest), f"one a GPU, of {spec.gpus_per_node} on a node"
    if spec.nodes is not None:
        return math.ceil(largest / spec.nodes), f"the largest trial's {largest} over {spec.nodes}"
    return 1, "more by --ranks-per-node, --nodes or --gres"


def jobs(request: Request, spec: JobSpec, plan: Plan) -> list[tuple[Job, Sequence[Point]]]:
    """The jobs of a plan, each with its points.

    Raises:
        UserError: mode per-world-size, and the sweep is no product of world sizes and the rest.
    """
    if spec.mode == "per-world-size":
        return [_of_size(request, spec, plan, size) for size in sorted({point.spec.ranks for point in plan.points})]
    tasks = spec.array_tasks if spec.mode == "array" else 1
    return [(_job(request, spec, job_name(plan.sweep.name, request.session), plan.points, [], tasks), plan.points)]


def _of_size(request: Request, spec: JobSpec, plan: Plan, size: int) -> tuple[Job, Sequence[Point]]:
    """The job of all points with one world size.

    Threads are given, since their default depends on the largest world size, of which this job knows nothing.
    """
    points = [point for point in plan.points if point.spec.ranks == size]
    extra = [f"world_size={size}"]
    if not gives_threads(plan):
        extra.append(f"threads_per_rank={spec.cpus_per_rank or points[0].spec.threads_per_rank}")
    selected = {_but_threads(point) for point in planned(request, spec, extra).points}
    if selected != {_but_threads(point) for point in points}:
        raise UserError(
            f"{plan.sweep.name}: --mode per-world-size: -o world_size={size} selects {len(selected)} points, the plan "
            f"has {len(points)} of {size} ranks; keep world_size out of zip and include, or use --mode sweep"
        )
    name = job_name(plan.sweep.name, request.session, f"{size}ranks")
    return _job(request, spec.model_copy(update={"nodes": None}), name, points, extra), points


def _but_threads(point: Point) -> str:
    return point.spec.model_copy(update={"threads_per_rank": None}).model_dump_json()


def _job(
    request: Request, spec: JobSpec, name: str, points: Sequence[Point], extra: list[str], num_tasks: int = 1
) -> Job:
    num_ranks = max(point.spec.ranks for point in points)
    usual, _ = ranks_a_node(spec, points)
    per_node = max(point.spec.ranks_per_node or usual for point in points)
    store = Path(request.store).expanduser().absolute()
    file = find_sweep_file(request.file)
    named = request.file if spec.container and file != request.file else file.expanduser().absolute()
    words = ["benchsuite", "sweep", str(named), "--session", request.session, "--launcher", spec.launcher]
    words += request.words
    words += [word for text in extra for word in ("-o", text)]
    command = Path(sys.executable).parent / "benchsuite"
    variables = [*CONFIG_VARIABLES, *environment_fields()]  # what the sweep is; PBS hands none of them to a job
    return Job(
        name=name,
        nodes=spec.nodes or _nodes_of(points, spec),
        ranks_per_node=min(per_node, num_ranks),
        words=words,
        store=store,
        folder=Path.cwd(),
        out=(request.out or store / "jobs").expanduser().absolute(),
        num_tasks=num_tasks,
        environment={name: os.environ[name] for name in variables if name in os.environ},
        search=command.parent if command.is_file() else None,
    )


def _shape(job: Job, spec: JobSpec, plan: Plan) -> str:
    """How many ranks a job has on how many nodes, and why, for people."""
    why = "as the sweep says"
    if any(point.spec.ranks_per_node is None for point in plan.points):
        _, why = ranks_a_node(spec, plan.points)
    tasks = f"{job.num_tasks} jobs of " if job.num_tasks > 1 else ""
    return f"{job.name}: {tasks}{counted(job.nodes, 'node')} x {counted(job.ranks_per_node, 'rank')} ({why})"


def _write(job: Job, text: str) -> None:
    """Write a script; where another lies there, a job may yet run it again, so the user hears of it."""
    try:
        if os.path.lexists(job.script) and not _is(job.script, text):
            echo(f"note: {job.script} was there with other content: replaced", err=True)
        if job.out.parent == job.store:
            folder_in(job.store, job.out.name)
        else:
            job.out.mkdir(parents=True, exist_ok=True)
        write_new(job.script, text, 0o755)
        if job.out.parent == job.store:
            share(job.script, job.store)
    except OSError as error:
        raise UserError(f"--out {job.out}: cannot be written: {error.strerror}") from error


def _is(script: Path, text: str) -> bool:
    """Whether a script is there, this user's own, with this text."""
    try:
        return read_plain(script) == text.encode()
    except OSError:
        return False


def _command(scheduler: Scheduler, job: Job) -> list[str]:
    """What submits a job's script; PBS learns of an array here, so that a requeued task is one job."""
    array = ["-J", f"1-{job.num_tasks}"] if scheduler == "pbs" and job.num_tasks > 1 else []
    return [*COMMANDS[scheduler], *array, str(job.script)]


def _check_installed(scheduler: Scheduler) -> None:
    program = COMMANDS[scheduler][0]
    if shutil.which(program) is None:
        raise UserError(
            f"{program} is not on PATH: submit from a login node of the cluster, or install it (Debian: "
            f"{PACKAGES[scheduler]}); --dry-run only writes the script"
        )


def _submitted(command: list[str], job: Job) -> str:
    """Submit a script; a line with the job's id."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"{command[0]} {job.script}: {reason}")
    number = done.stdout.strip().partition(";")[0]
    return f"submitted: {number} · {job.script}"
