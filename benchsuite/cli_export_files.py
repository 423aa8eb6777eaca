"""The verbs `results export csv | parquet | junit | prometheus | latex | methods`. Imports little until one is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.options import RecordKind

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


def csv(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    by: By = "trial",
    kind: Kind = RecordKind.trial,
) -> None:
    """Every column as CSV, a row per trial or point."""
    from benchsuite import export_files

    export_files.csv(store, out, where or [], by, kind)


def parquet(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="Where to.")],
    store: Store = DEFAULT_STORE,
    where: Where = None,
    by: By = "trial",
    kind: Kind = RecordKind.trial,
) -> None:
    """Every column as Parquet, typed, a row per trial or point."""
    from benchsuite import export_files

    export_files.parquet(store, out, where or [], by, kind)


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
    from benchsuite import export_files

    export_files.junit(store, out, where or [], check, kind)


def prometheus(
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.prom|DIR", help="A node exporter's textfile directory, or a file there."),
    ] = None,
    where: Where = None,
) -> None:
    """The newest session of every point as Prometheus text; a file is replaced at once, never half written."""
    from benchsuite import export_files

    export_files.prometheus(store, out, where or [])


def latex(store: Store = DEFAULT_STORE, out: Out = None, where: Where = None) -> None:
    """Tables of points for papers: medians with ranges or intervals (LaTeX, booktabs)."""
    from benchsuite import export_files

    export_files.latex(store, out, where or [])


def methods(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    latex: Annotated[bool, typer.Option("--latex", help="As LaTeX; default: plain text.")] = False,
) -> None:
    """A methods paragraph for papers, made from the records."""
    from benchsuite import export_files

    export_files.methods(store, out, where or [], latex)


def register(app: typer.Typer) -> None:
    """Add the verbs to `results export`."""
    for verb in (csv, parquet, junit, prometheus, latex, methods):
        app.command(verb.__name__)(verb)
