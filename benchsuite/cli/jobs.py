"""The verbs `submit` and `status`, and those under `nightly`."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchsuite.batch.job_script import Scheduler
from benchsuite.cli.common import (
    DEFAULT_STORE,
    GROUP,
    Overrides,
    Plain,
    Session,
    Store,
    has_runs,
    print_facts,
    take_in_lost_runs,
    warn_of_damage,
)
from benchsuite.cli.sweep_options import SweepOptions, parse_retry, takes_sweep_options
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.grid import expand
from benchsuite.grid.layers import find_sweep_file
from benchsuite.host.site import JobMode, JobSpec
from benchsuite.results.render.words import counted, duration, typed
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.status import Standing, planned_trials, session_standing

if TYPE_CHECKING:
    from benchsuite.watcher.run_trainings import GoingOn

Text = str | None
Number = int | None


OMITTED = ("launcher", "until")
"""Options that `submit` omits: the site's settings choose a job's launcher, and the job's time limit ends it."""


@takes_sweep_options(without=OMITTED)
def submit(
    context: typer.Context,
    scheduler: Annotated[Scheduler, typer.Argument(help="slurm, pbs; kubernetes with --dry-run.")],
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML), or a name of `benchsuite list sweeps`.")],
    nodes: Annotated[
        Number, typer.Option("--nodes", min=1, help="Number of nodes; default: what the largest world size needs.")
    ] = None,
    time: Annotated[Text, typer.Option("--time", metavar="[D-]HH:MM:SS", help="Time limit of the job.")] = None,
    account: Annotated[Text, typer.Option("--account", help="Account to charge.")] = None,
    partition: Annotated[Text, typer.Option("--partition", help="Partition; in PBS the queue.")] = None,
    qos: Annotated[Text, typer.Option("--qos", help="Quality of service (Slurm).")] = None,
    constraint: Annotated[Text, typer.Option("--constraint", help="Constraint on nodes; in PBS NAME=VALUE.")] = None,
    gres: Annotated[Text, typer.Option("--gres", help="Devices of each node: gpu:4; in PBS ngpus=4.")] = None,
    ranks_per_node: Annotated[
        Number,
        typer.Option(
            "--ranks-per-node",
            min=1,
            help="Ranks per node; default: one per GPU of --gres, else spread over --nodes, else 1.",
        ),
    ] = None,
    cpus_per_rank: Annotated[Number, typer.Option("--cpus-per-rank", min=1, help="Cores per rank.")] = None,
    directive: Annotated[
        list[str] | None,
        typer.Option("--directive", metavar="KEY=VALUE", help="Any other directive of the scheduler. May be repeated."),
    ] = None,
    mode: Annotated[
        JobMode | None,
        typer.Option("--mode", help="sweep: one job; array: sweeps that share the trials; per-world-size: a job each."),
    ] = None,
    array_tasks: Annotated[
        Number, typer.Option("--array-tasks", min=1, help="Tasks with --mode array; default 4.")
    ] = None,
    max_requeues: Annotated[
        Number, typer.Option("--max-requeues", min=0, help="Most requeues of a job that stops early; default 20.")
    ] = None,
    launcher: Annotated[
        Text, typer.Option("--launcher", help="What starts the ranks of the sweep; default: the site's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write and print the script; submit nothing.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for scripts and output; default STORE/jobs.")
    ] = None,
    *,
    options: SweepOptions,
) -> None:
    """Run a sweep as batch jobs: write the job script, check the plan, submit it with sbatch or qsub."""
    from benchsuite.batch import submit as submitting

    job_options = {name: context.params[name] for name in JobSpec.model_fields if context.params.get(name) is not None}
    parse_retry(options.retry)  # a mistake is an error now, and not in the job
    words = options.words(without=(*OMITTED, "session", "store"))  # the job script adds session and store
    request = submitting.Request(file, options.session, options.store, options.overrides or [], words, dry_run, out)
    raise typer.Exit(submitting.submit(scheduler, request, job_options, directive or []))


def status(
    file: Annotated[Path | None, typer.Argument(help="The sweep file, which says what is still to run.")] = None,
    session: Session = "default",
    store: Store = DEFAULT_STORE,
    overrides: Overrides = None,
    format: Plain = "table",
    follow: Annotated[
        bool, typer.Option("--follow", help="Show it again every 5 seconds; JSON is a line then.")
    ] = False,
) -> None:
    """Show which trials are done, running and waiting, which failed, and how long the rest may take."""
    check_session(session)
    while True:
        _show_status(file, session, store, overrides, format, indent=None if follow else 1)
        if not follow:
            return
        time.sleep(FOLLOW_S)
        if format == "table":
            echo("\033[H\033[J" if sys.stdout.isatty() else "")


def _show_status(
    file: Path | None, session: str, store: Path, overrides: list[str] | None, format: PlainFormat, indent: int | None
) -> None:
    take_in_lost_runs(store)
    opened = ResultsStore(store)
    sweep = expand.load_sweep(find_sweep_file(file), overrides or []) if file else None
    standing = session_standing(planned_trials(sweep, session, opened), session, opened, whole=sweep is None)
    runs = _runs(opened)
    facts = asdict(standing) | ({"runs": [run._asdict() for run in runs]} if runs else {})
    print_facts(format, facts, [*_lines(standing), *map(_run_line, runs)], indent)
    if file is None and (others := _other_sessions(standing, opened)):
        echo(f"note: {store} has nothing of session {session}; its sessions: {others}", err=True)
    warn_of_damage(opened)


MAX_LISTED = 20
FOLLOW_S = 5.0


def _runs(store: ResultsStore) -> "list[GoingOn]":
    """The trainings under `benchsuite run` or `watch` that go on."""
    if not has_runs(store.path):
        return []
    from benchsuite.watcher.run_trainings import going_on  # takes numpy, which `status` seldom needs

    return going_on(store)


def _run_line(run: "GoingOn") -> str:
    """A training that goes on, as a line for people."""
    ranks = f", {counted(run.ranks, 'rank')}" if run.ranks > 1 else ""
    parts = [
        f"running  {run.name} on {run.node}{ranks}: step {run.steps:,}",
        "" if run.samples_per_s is None else f"{run.samples_per_s:,.0f} samples/s",
        "" if run.input_stall_fraction is None else f"waiting for input {run.input_stall_fraction:.0%}",
        (run.bottleneck or "").replace("_", " "),
        f"told {duration(max(0.0, time.time() - run.told_at_s))} ago",
    ]
    return " · ".join(filter(None, parts))


def _other_sessions(standing: Standing, store: ResultsStore) -> str:
    """Return the last sessions of a store, the newest at the end; empty where it has something of this session."""
    if standing.done or standing.failed or standing.running or standing.waiting is not None:
        return ""
    from benchsuite.cli.report import sessions_of  # takes pandas, which `status` seldom needs

    return ", ".join(sessions_of(store)[-MAX_LISTED:])


def _lines(standing: Standing) -> list[str]:
    """Return where a session stands, as lines for people."""
    counts = [f"session {standing.session}", f"{standing.done} done", f"{len(standing.failed)} failed"]
    counts.append(f"{len(standing.running)} running")
    if standing.waiting is not None:
        counts.append(f"{standing.waiting} waiting")
    if standing.rest_s:
        sweeps = len({trial.holder for trial in standing.running if not trial.gone})
        counts.append(f"about {duration(standing.rest_s)} left with {counted(max(1, sweeps), 'sweep')}")
    lines = [" · ".join(counts)]
    for trial in standing.running[:MAX_LISTED]:
        gone = " (gone)" if trial.gone else ""
        lines.append(f"running  {trial.label}: {trial.holder}, since {trial.since}{gone}")
    for failed in [*standing.failed.values()][:MAX_LISTED]:
        lines.append(f"failed   {failed.label}: {failed.reason}")
    hidden = max(0, len(standing.running) - MAX_LISTED) + max(0, len(standing.failed) - MAX_LISTED)
    if hidden:
        lines.append(f"and {hidden} more; --format json has all")
    return lines


nightly_app = typer.Typer(help="Measure every night and keep the history (asv).", **GROUP)


@nightly_app.command("init")
def nightly_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sweep: Annotated[Path | None, typer.Option("--sweep", help="The first sweep: a file, or a built-in name.")] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0, help="Cut the sweep to fit, by earlier trials or by one that is run now."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes of a night's job.")] = 1,
) -> None:
    """Make a results repository: asv's configuration, benchmarks, sweeps, and the line for cron or scrontab."""
    from benchsuite.nightly import init

    if sweep is not None:
        sweep = find_sweep_file(sweep)
        expand.load_sweep(sweep, [])
    for line in init.make(folder, sweep, init.Size(hours, nodes)):
        echo(line, err=True)
    echo(f"{folder}: README.md says what is in it; next: cd {typed(folder)} && benchsuite nightly run", err=True)


@nightly_app.command("run")
@takes_sweep_options(without=("session", "store", "overrides", "profile"))
def nightly_run(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The results repository.")] = Path(),
    session: Annotated[
        str | None,
        typer.Option("--session", help="Name of the night; default: the night that did not end, else today (UTC)."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--asv-machine", help="Name of the machine in asv; default: that of the folder.")
    ] = None,
    *,
    options: SweepOptions,
) -> None:
    """Measure a night: sweeps, commit, asv's history and pages, check. The same command goes on after a stop."""
    from benchsuite.nightly import night

    if session is not None:
        check_session(session)
    parse_retry(options.retry)
    raise typer.Exit(night.run(folder, session, machine, options.words()))
