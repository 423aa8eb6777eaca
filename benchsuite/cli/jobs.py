"""The verbs `submit` and `status`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchsuite.batch.job_script import Scheduler
from benchsuite.cli.common import Plain, warn_of_damage
from benchsuite.contract.exit_codes import OK, STORE_VARIABLE
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import SweepSpec, check_session
from benchsuite.grid import expand
from benchsuite.grid.layers import bundled
from benchsuite.host.machine import this_machine
from benchsuite.host.site import JobMode
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.claims import CLAIMS, Claim, running
from benchsuite.runner.plans import kept_plans, labels
from benchsuite.runner.sweep import FINISHED

Text = str | None
Number = int | None


def submit(
    scheduler: Annotated[Scheduler, typer.Argument(help="slurm or pbs.")],
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML).")],
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
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Any other directive, again.")
    ] = None,
    mode: Annotated[
        JobMode | None,
        typer.Option("--mode", help="sweep: one job; array: sweeps that share the trials; per-world-size: a job each."),
    ] = None,
    array_tasks: Annotated[Number, typer.Option("--array-tasks", min=1, help="Of --mode array; default 4.")] = None,
    max_requeues: Annotated[
        Number, typer.Option("--max-requeues", min=0, help="Of a job that stops early; default 20.")
    ] = None,
    session: Annotated[str, typer.Option("--session", help="Measuring campaign.")] = "default",
    store: Annotated[Path, typer.Option("--store", envvar=STORE_VARIABLE, help="Results store.")] = Path(
        "benchsuite-store"
    ),
    launcher: Annotated[Text, typer.Option("--launcher", help="Of the sweep.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the script; submit nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where scripts and output go; default STORE/jobs.")] = None,
) -> None:
    """Run a sweep as batch jobs: write the job script, check the plan, hand it to sbatch or qsub."""
    from benchsuite.batch import submit as submitting

    asked = {"nodes": nodes, "time": time, "account": account, "partition": partition, "qos": qos} | {
        "constraint": constraint,
        "gres": gres,
        "ranks_per_node": ranks_per_node,
        "cpus_per_rank": cpus_per_rank,
        "mode": mode,
        "array_tasks": array_tasks,
        "max_requeues": max_requeues,
        "launcher": launcher,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    request = submitting.Request(file, session, store, overrides or [], dry_run, out)
    raise typer.Exit(submitting.submit(scheduler, request, given, option or []))


def status(
    file: Annotated[Path | None, typer.Argument(help="The sweep file; it tells what is still to come.")] = None,
    session: Annotated[str, typer.Option("--session", help="Which measuring campaign.")] = "default",
    store: Annotated[
        Path, typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True)
    ] = Path("benchsuite-store"),
    overrides: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="As the sweep was given.")
    ] = None,
    format: Plain = "table",
) -> None:
    """Where a session stands: done, failed, running and by whom, waiting, and how long it may take."""
    raise typer.Exit(print_status(file, session, store, overrides or [], format))


FAILED = ("failed", "oom", "timeout")
MAX_TOLD = 20


@dataclass(frozen=True)
class Running:
    """A trial that a sweep is at."""

    trial: str
    label: str
    holder: str
    since: str
    gone: bool
    """Its sweep has ended without leaving it, as this machine can tell."""


@dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    label: str
    reason: str


@dataclass(frozen=True)
class Status:
    """A session as it stands."""

    session: str
    done: int
    """Trials that ended well."""
    failed: Mapping[str, Failed]
    """By trial."""
    running: Sequence[Running]
    waiting: int | None
    """None where neither a sweep file nor a plan in the store says what is still to come."""
    rest_s: float | None
    """Estimated seconds until all is done, with as many sweeps as there are now; None where nothing tells."""


def print_status(file: Path | None, session: str, store_path: Path, overrides: list[str], format: PlainFormat) -> int:
    """Print where a session stands; the exit code."""
    check_session(session)
    store = ResultsStore(store_path)
    asked = expand.load_sweep(bundled(file), overrides) if file else None
    found = examine(planned(asked, session, store), session, store, whole=asked is None)
    if format == "json":
        document(json.dumps(asdict(found), indent=1))
    else:
        echo(*lines(found))
    warn_of_damage(store)
    return OK


def planned(asked: SweepSpec | None, session: str, store: ResultsStore) -> dict[str, str] | None:
    """The trials that a sweep comes to, or all sweeps of a session, with their labels; None where nothing is known.

    Where this machine would plan none of the trials that the sweep has planned on its nodes, theirs are meant.
    """
    kept = kept_plans(store.path, session)
    if asked is None:
        return {trial: label for plan in kept.values() for trial, label in plan.items()} or None
    here = labels(expand.expand(asked, this_machine(), store.path), session)
    there = kept.get(asked.name, {})
    return there if there and not here.keys() & there.keys() else here


def examine(asked: Mapping[str, str] | None, session: str, store: ResultsStore, whole: bool) -> Status:
    """Where a session stands: all of it, or what is asked of it."""
    stored = store.latest() if asked is None or store.exists() else []
    mine = [record for record in stored if record.session == session and record.kind == "trial"]
    trials = mine if whole or asked is None else [record for record in mine if record.trial_id in asked]
    done = [record for record in trials if record.status == "ok"]
    over = {record.trial_id for record in done}
    held = {
        name: claim
        for name, claim in running(store.path / CLAIMS / session).items()
        if (whole or asked is None or _trial(name) in asked) and not (name in over and claim.holder.is_gone())
    }
    waiting = None
    if asked is not None:
        over = {record.trial_id for record in trials if record.status in FINISHED}
        waiting = len(asked.keys() - over - {_trial(name) for name in held})
    return Status(
        session=session,
        done=len(done),
        failed={record.trial_id: _failed(record) for record in trials if record.status in FAILED},
        running=[_running(name, claim, asked or {}) for name, claim in held.items()],
        waiting=waiting,
        rest_s=_rest_s(done, waiting, held),
    )


def _failed(record: TrialRecord) -> Failed:
    label = f"{record.label} · repeat {record.repeat + 1}" if record.label else record.trial_id
    return Failed(label, record.reason or "")


def _trial(name: str) -> str:
    """The trial of a claim's name, which may end with how it is observed: point, session and repeat come first."""
    head, _, last = name.rpartition(".")
    return name if last.isdigit() else head


def _running(name: str, claim: Claim, labels: Mapping[str, str]) -> Running:
    trial = _trial(name)
    return Running(trial, labels.get(trial, trial), str(claim.holder), claim.since, claim.holder.is_gone())


def _rest_s(done: Sequence[TrialRecord], waiting: int | None, held: Mapping[str, Claim]) -> float | None:
    taken = [record.wall_s for record in done if record.wall_s is not None]
    if waiting is None or not taken:
        return None
    sweeps = len({(claim.holder.host, claim.holder.pid) for claim in held.values() if not claim.holder.is_gone()})
    return median(taken) * (waiting + len(held) / 2) / max(1, sweeps)


def lines(found: Status) -> list[str]:
    """For people."""
    parts = [f"session {found.session}", f"{found.done} done", f"{len(found.failed)} failed"]
    parts.append(f"{len(found.running)} running")
    if found.waiting is not None:
        parts.append(f"{found.waiting} waiting")
    if found.rest_s:
        sweeps = len({one.holder for one in found.running if not one.gone})
        parts.append(f"about {_duration(found.rest_s)} left with {max(1, sweeps)} sweep{'s' if sweeps > 1 else ''}")
    told: list[Any] = [" · ".join(parts)]
    for one in found.running[:MAX_TOLD]:
        told.append(f"running  {one.label}: {one.holder}, since {one.since}{' (gone)' if one.gone else ''}")
    told += [f"failed   {one.label}: {one.reason}" for one in [*found.failed.values()][:MAX_TOLD]]
    hidden = max(0, len(found.running) - MAX_TOLD) + max(0, len(found.failed) - MAX_TOLD)
    return told + ([f"and {hidden} more; --format json has all"] if hidden else [])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
