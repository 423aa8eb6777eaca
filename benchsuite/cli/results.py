"""The verbs `results show`, `results query` and `results compact`. Imports little until a verb needs it."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.cli import export
from benchsuite.contract.exit_codes import PlainFormat, RecordKind, TableFormat

results_app = typer.Typer(help="Look into a results store.", no_args_is_help=True, rich_markup_mode=None)
results_app.add_typer(export.export_app, name="export")
results_app.command("profile")(export.profile)
results_app.command("darshan")(export.darshan)

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
DEFAULT_STORE = Path("benchsuite-store")
Format = Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")]


@results_app.command("show")
def show(
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
    by: Annotated[str, typer.Option("--by", help="trial, or point (median over repeats).")] = "trial",
    kind: Annotated[RecordKind, typer.Option("--kind", help="trial, probe, comm or checkpoint.")] = RecordKind.trial,
) -> None:
    """One row per trial, probe, collective or checkpoint."""
    from benchsuite.cli import report as show

    show.results(store, format, by, kind)


@results_app.command("query")
def query(
    query: Annotated[str, typer.Argument(help="SQL over the table `trials`; see --columns.")] = "",
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
    columns: Annotated[
        bool, typer.Option("--columns", help="List the columns of `trials` with their types, and stop.")
    ] = False,
) -> None:
    """Run SQL (DuckDB) over the trials, such as: select label, au, "spec.data.format" from trials."""
    from benchsuite.cli import report as show

    if columns:
        show.query_columns(store, format)
    else:
        show.query(store, query, format)


@results_app.command("compact")
def compact(
    store: Store = DEFAULT_STORE,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Add Parquet of what was appended since the last time, for fast reading; sweeps may go on meanwhile."""
    from benchsuite.cli import report as show

    show.compaction(store, format)
