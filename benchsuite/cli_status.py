"""The verb `status`. Imports little until it is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.options import PlainFormat


def status(
    file: Annotated[Path | None, typer.Argument(help="The sweep file; it tells what is still to come.")] = None,
    session: Annotated[str, typer.Option("--session", help="Which measuring campaign.")] = "default",
    store: Annotated[
        Path, typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True)
    ] = Path("benchsuite-store"),
    overrides: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="As the sweep was given.")
    ] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Where a session stands: done, failed, running and by whom, waiting, and how long it may take."""
    from benchsuite import status as examination

    raise typer.Exit(examination.status(file, session, store, overrides or [], format))
