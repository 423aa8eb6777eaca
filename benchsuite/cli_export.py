"""The verbs `results export ...`, `results profile` and `results darshan`."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite import cli_export_files
from benchsuite.cli_export_files import DEFAULT_STORE, Store
from benchsuite.options import PlainFormat
from benchsuite.terminal import echo

export_app = typer.Typer(help="Results in the form of other programs.", no_args_is_help=True, rich_markup_mode=None)
cli_export_files.register(export_app)

Format = Annotated[PlainFormat, typer.Option("--format", help="table or json.")]


@export_app.command("trace")
def trace(
    names: Annotated[
        list[str], typer.Argument(metavar="[TRIAL_ID] OUT.json", help="Which trial (default: the last), and where to.")
    ],
    store: Store = DEFAULT_STORE,
) -> None:
    """Write a trial's steps as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    from benchsuite import exporting

    exporting.export_trace(store, names)


@export_app.command("asv")
def asv(
    store: Store = DEFAULT_STORE,
    config: Annotated[Path, typer.Option("--config", help="asv's configuration.")] = Path("asv.conf.json"),
    machine: Annotated[
        str | None, typer.Option("--machine", help="Whose results they are; default: the host of each trial.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", help="Of trials that know of none, or ran in a changed work tree.")
    ] = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="Only the sweep of this name.")] = None,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Those of a changed work tree too, apart: environment benchsuite-dirty.")
    ] = False,
) -> None:
    """Write sweeps, such as those of batch jobs, into asv's history; `asv show`, `compare`, `publish` read them."""
    from benchsuite.damage import warn_of_damage
    from results.export.asv import export
    from results.store import ResultsStore

    opened = ResultsStore(store)
    found = export(opened, config, machine, commit, sweep, dirty)
    for line in found.left_out:
        echo(line, err=True)
    for new in found.written:
        points = f"{new.num_points} point{'s' * (new.num_points > 1)}"
        commit_words = f"commit {new.commit[:8]}{', changed work tree' * new.is_changed}"
        echo(f"{new.sweep} · {points} · session {new.session} · {commit_words} · {new.machine}: {new.path}")
    warn_of_damage(opened)


def profile(
    trial: Annotated[str, typer.Argument(metavar="[TRIAL_ID]", help="Which trial; default: the last profiled.")] = "",
    store: Store = DEFAULT_STORE,
    format: Format = PlainFormat.table,
) -> None:
    """Print a trial's I/O profile (`sweep --profile io`)."""
    from benchsuite import exporting

    exporting.show_profile(store, trial, format)


def darshan(
    log: Annotated[Path, typer.Argument(help="A log of Darshan.")],
    under: Annotated[Path, typer.Option("--under", help="Only files below this folder.")] = Path("/"),
    format: Format = PlainFormat.table,
) -> None:
    """Print the POSIX counters of a Darshan log in the form of an I/O profile."""
    from benchsuite import exporting

    exporting.show_darshan(log, under, format)
