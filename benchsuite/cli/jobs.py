"""The verbs `submit` and `status`, and those under `nightly`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchsuite.batch.job_script import Scheduler
from benchsuite.cli.common import DEFAULT_STORE, GROUP, Overrides, Plain, Session, Store, tell, warn_of_damage
from benchsuite.cli.sweep_options import SweepOptions, retried, takes_sweep_options
from benchsuite.contract.terminal import echo
from benchsuite.contract.trial_spec import check_session
from benchsuite.grid import expand
from benchsuite.grid.layers import bundled
from benchsuite.host.site import JobMode, JobSpec
from benchsuite.results.render.words import counted, duration, typed
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.status import Standing, examine, planned

Text = str | None
Number = int | None


NOT_OF_A_JOB = ("launcher", "until")
"""A job's launcher is a setting of the site, and its own time limit ends it."""


@takes_sweep_options(without=NOT_OF_A_JOB)
def submit(
    context: typer.Context,
    scheduler: Annotated[Scheduler, typer.Argument(help="slurm, pbs; kubernetes with --dry-run.")],
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML), or a name of `benchsuite list sweeps`.")],
    nodes: Annotated[Number, typer.Option("--nodes", min=1, help="Default: what the largest world size needs.")] = None,
    time: Annotated[Text, typer.Option("--time", metavar="[D-]HH:MM:SS", help="The job's limit.")] = None,
    account: Annotated[Text, typer.Option("--account", help="Whom it is charged to.")] = None,
    partition: Annotated[Text, typer.Option("--partition", help="PBS: the queue.")] = None,
    qos: Annotated[Text, typer.Option("--qos", help="Quality of service (Slurm).")] = None,
    constraint: Annotated[Text, typer.Option("--constraint", help="Of nodes; PBS: NAME=VALUE.")] = None,
    gres: Annotated[Text, typer.Option("--gres", help="Of each node: gpu:4; PBS: ngpus=4.")] = None,
    ranks_per_node: Annotated[
        Number,
        typer.Option("--ranks-per-node", min=1, help="Default: one a GPU of --gres, else spread over --nodes, else 1."),
    ] = None,
    cpus_per_rank: Annotated[Number, typer.Option("--cpus-per-rank", min=1, help="Cores of a rank.")] = None,
    directive: Annotated[
        list[str] | None, typer.Option("--directive", metavar="KEY=VALUE", help="Any other of the scheduler's; again.")
    ] = None,
    mode: Annotated[
        JobMode | None,
        typer.Option("--mode", help="sweep: one job; array: sweeps that share the trials; per-world-size: a job each."),
    ] = None,
    array_tasks: Annotated[Number, typer.Option("--array-tasks", min=1, help="Of --mode array; default 4.")] = None,
    max_requeues: Annotated[
        Number, typer.Option("--max-requeues", min=0, help="Of a job that stops early; default 20.")
    ] = None,
    launcher: Annotated[Text, typer.Option("--launcher", help="Of the sweep.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write and show the script; submit nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where scripts and output go; default STORE/jobs.")] = None,
    *,
    options: SweepOptions,
) -> None:
    """Run a sweep as batch jobs: write the job script, check the plan, hand it to sbatch or qsub."""
    from benchsuite.batch import submit as submitting

    given = {name: context.params[name] for name in JobSpec.model_fields if context.params.get(name) is not None}
    retried(options.retry)  # a mistake is told now, not by the job
    words = options.words(without=(*NOT_OF_A_JOB, "session", "store"))  # a script names these by itself
    request = submitting.Request(file, options.session, options.store, options.overrides or [], words, dry_run, out)
    raise typer.Exit(submitting.submit(scheduler, request, given, directive or []))


def status(
    file: Annotated[Path | None, typer.Argument(help="The sweep file; it tells what is still to come.")] = None,
    session: Session = "default",
    store: Store = DEFAULT_STORE,
    overrides: Overrides = None,
    format: Plain = "table",
) -> None:
    """Where a session stands: done, failed, running and by whom, waiting, and how long it may take."""
    check_session(session)
    opened = ResultsStore(store)
    asked = expand.load_sweep(bundled(file), overrides or []) if file else None
    found = examine(planned(asked, session, opened), session, opened, whole=asked is None)
    tell(format, asdict(found), _lines(found))
    if file is None and (others := _other_sessions(found, opened)):
        echo(f"note: nothing of session {session} in {store}; --session of those there: {others}", err=True)
    warn_of_damage(opened)


MAX_TOLD = 20


def _other_sessions(found: Standing, store: ResultsStore) -> str:
    """The sessions that a store has, the last one at the end, where it has nothing of the one that was asked for."""
    if found.done or found.failed or found.running or found.waiting is not None:
        return ""
    from benchsuite.cli.report import sessions_of  # takes pandas, which asking how a sweep stands mostly need not

    return ", ".join(sessions_of(store)[-MAX_TOLD:])


def _lines(found: Standing) -> list[str]:
    """Tell a sweep's standing in lines for people."""
    parts = [f"session {found.session}", f"{found.done} done", f"{len(found.failed)} failed"]
    parts.append(f"{len(found.running)} running")
    if found.waiting is not None:
        parts.append(f"{found.waiting} waiting")
    if found.rest_s:
        sweeps = len({one.holder for one in found.running if not one.gone})
        parts.append(f"about {duration(found.rest_s)} left with {counted(max(1, sweeps), 'sweep')}")
    told: list[Any] = [" · ".join(parts)]
    for one in found.running[:MAX_TOLD]:
        told.append(f"running  {one.label}: {one.holder}, since {one.since}{' (gone)' if one.gone else ''}")
    told += [f"failed   {one.label}: {one.reason}" for one in [*found.failed.values()][:MAX_TOLD]]
    hidden = max(0, len(found.running) - MAX_TOLD) + max(0, len(found.failed) - MAX_TOLD)
    return told + ([f"and {hidden} more; --format json has all"] if hidden else [])


nightly_app = typer.Typer(help="Nights of a site.", **GROUP)


@nightly_app.command("init")
def nightly_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sweep: Annotated[Path | None, typer.Option("--sweep", help="A first sweep: a file, or a built-in name.")] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0, help="Cut the sweep to what fits, by history or by one trial that is run now."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes of a night's job.")] = 1,
) -> None:
    """Make a results repository: asv's configuration, benchmarks, sweeps, the line for cron or scrontab."""
    from benchsuite.nightly import init

    if sweep is not None:
        sweep = bundled(sweep)
        expand.load_sweep(sweep, [])
    for line in init.make(folder, sweep, init.Size(hours, nodes)):
        echo(line, err=True)
    echo(f"{folder}: README.md says what is there; next: cd {typed(folder)} && benchsuite nightly run", err=True)


@nightly_app.command("run")
@takes_sweep_options(without=("session", "store", "overrides", "profile"))
def nightly_run(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The results repository.")] = Path(),
    session: Annotated[
        str | None, typer.Option("--session", help="Default: the night that did not end, else today (UTC).")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--asv-machine", help="Its name in asv; default: that of the folder.")
    ] = None,
    *,
    options: SweepOptions,
) -> None:
    """Measure a night: sweeps, commit, asv's history and pages, check. Again goes on where it stopped."""
    from benchsuite.nightly import night

    if session is not None:
        check_session(session)
    retried(options.retry)
    raise typer.Exit(night.run(folder, session, machine, options.words()))
