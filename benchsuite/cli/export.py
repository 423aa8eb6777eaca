"""The verbs `results export ...`, `results profile` and `results darshan`. Imports little until one is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.contract.exit_codes import PlainFormat, RecordKind
from benchsuite.contract.terminal import echo

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
DEFAULT_STORE = Path("benchsuite-store")
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only such trials: data.format=hdf5, session=tonight; again."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; default: standard output.")]
By = Annotated[str, typer.Option("--by", help="trial, or point (median over repeats).")]
Kind = Annotated[RecordKind, typer.Option("--kind", help="trial, probe, comm or checkpoint.")]

Format = Annotated[PlainFormat, typer.Option("--format", help="table or json.")]

export_app = typer.Typer(help="Results in the form of other programs.", no_args_is_help=True, rich_markup_mode=None)


@export_app.command("csv")
def csv(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    by: By = "trial",
    kind: Kind = RecordKind.trial,
) -> None:
    """Every column as CSV, a row per trial or point."""
    from benchsuite.cli import export_files

    export_files.csv(store, out, where or [], by, kind)


@export_app.command("parquet")
def parquet(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="Where to.")],
    store: Store = DEFAULT_STORE,
    where: Where = None,
    by: By = "trial",
    kind: Kind = RecordKind.trial,
) -> None:
    """Every column as Parquet, typed, a row per trial or point."""
    from benchsuite.cli import export_files

    export_files.parquet(store, out, where or [], by, kind)


@export_app.command("junit")
def junit(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also what `benchsuite check` finds in the store: regressions fail.")
    ] = False,
    kind: Kind = RecordKind.trial,
) -> None:
    """Trials, or collectives, as JUnit XML: failed, oom and timeout are failures; the exit code stays 0."""
    from benchsuite.cli import export_files

    export_files.junit(store, out, where or [], check, kind)


@export_app.command("prometheus")
def prometheus(
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.prom|DIR", help="A node exporter's textfile directory, or a file there."),
    ] = None,
    where: Where = None,
) -> None:
    """The newest session of every point as Prometheus text; a file is replaced at once, never half written."""
    from benchsuite.cli import export_files

    export_files.prometheus(store, out, where or [])


@export_app.command("latex")
def latex(store: Store = DEFAULT_STORE, out: Out = None, where: Where = None) -> None:
    """Tables of points for papers: medians with ranges or intervals (LaTeX, booktabs)."""
    from benchsuite.cli import export_files

    export_files.latex(store, out, where or [])


@export_app.command("methods")
def methods(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    latex: Annotated[bool, typer.Option("--latex", help="As LaTeX; default: plain text.")] = False,
) -> None:
    """A methods paragraph for papers, made from the records."""
    from benchsuite.cli import export_files

    export_files.methods(store, out, where or [], latex)


@export_app.command("trace")
def trace(
    names: Annotated[
        list[str], typer.Argument(metavar="[TRIAL_ID] OUT.json", help="Which trial (default: the last), and where to.")
    ],
    store: Store = DEFAULT_STORE,
) -> None:
    """Write a trial's steps as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    from benchsuite.cli import export_files

    export_files.export_trace(store, names)


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
    from benchsuite.cli.damage import warn_of_damage
    from benchsuite.results.export.asv import export
    from benchsuite.results.store.store import ResultsStore

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
    from benchsuite.cli import export_files

    export_files.show_profile(store, trial, format)


def darshan(
    log: Annotated[Path, typer.Argument(help="A log of Darshan.")],
    under: Annotated[Path, typer.Option("--under", help="Only files below this folder.")] = Path("/"),
    format: Format = PlainFormat.table,
) -> None:
    """Print the POSIX counters of a Darshan log in the form of an I/O profile."""
    from benchsuite.cli import export_files

    export_files.show_darshan(log, under, format)
