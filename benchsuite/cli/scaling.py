"""The verb `scaling`. Imports little until it is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.cli.export import DEFAULT_STORE, Store, Where
from benchsuite.contract.exit_codes import TableFormat


def scaling(
    store: Store = DEFAULT_STORE,
    format: Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")] = TableFormat.table,
    where: Where = None,
    mix_environments: Annotated[
        bool, typer.Option("--mix-environments", help="Also join trials of unlike machines, libraries, file systems.")
    ] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="OUT.svg", help="Draw the efficiencies.")] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", metavar="OUT.pdf", help="The same as PDF.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")] = False,
) -> None:
    """Weak and strong scaling: efficiency with its interval, what is lost to what, and the laws that fit."""
    from benchsuite.cli import scaling_tables

    scaling_tables.scaling(store, format, where or [], mix_environments, {"svg": svg, "pdf": pdf}, latex)
