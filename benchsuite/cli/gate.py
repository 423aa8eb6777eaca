"""The verbs `compare`, `baseline set`, `baseline show` and `check`. Imports little until one is used."""

from typing import Annotated

import typer

from benchsuite.cli.export import DEFAULT_STORE, Store
from benchsuite.contract.exit_codes import ComparedKind, TableFormat

baseline_app = typer.Typer(
    help="The sessions that later ones are checked against.", no_args_is_help=True, rich_markup_mode=None
)

Format = Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")]
KindOption = Annotated[ComparedKind, typer.Option("--kind", help="comm: collectives of `probe comm`.")]
SIDE = "A store, or KEY=VALUE[,KEY=VALUE] over --store: session, commit, date=A..B, any column."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same; what B is to A.")],
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
    metrics: Annotated[str, typer.Option("--metrics", help="Comma-separated; default: the usual ones.")] = "",
    kind: KindOption = ComparedKind.trial,
) -> None:
    """Compare B with A on the points that both have: ratio with its interval, and better, worse, same or can't tell."""
    from benchsuite.cli import gate_tables

    gate_tables.compare(store, a, b, format, [name for name in metrics.split(",") if name], kind)


@baseline_app.command("set")
def baseline_set(
    session: Annotated[list[str] | None, typer.Option("--session", help="A session; again for more.")] = None,
    date: Annotated[str, typer.Option("--date", metavar="FROM[..TO]", help="All sessions of these days.")] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Pin sessions as the reference of `check`; all that are there, unless some are named."""
    from benchsuite.cli import gate_tables

    gate_tables.set_baseline(store, session or [], date)


@baseline_app.command("show")
def baseline_show(
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
) -> None:
    """Print which sessions are the baseline."""
    from benchsuite.cli import gate_tables

    gate_tables.show_baseline(store, format)


def check(
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
    kind: KindOption = ComparedKind.trial,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Only such trials, as in `compare`; again.")
    ] = None,
    session: Annotated[
        str,
        typer.Option("--session", metavar="NAME|latest", help="Judge this one alone; default: each point's newest."),
    ] = "",
) -> None:
    """Check each point's newest session against the baseline and the nights since; exit code 10 where one got worse.

    Judged are samples/s, AU, the first batch and staging (comm: the collective's time); memory and energy are for
    `compare`, not judged here.
    """
    from benchsuite.cli import gate_tables

    raise typer.Exit(gate_tables.check(store, format, kind, where or [], session))
