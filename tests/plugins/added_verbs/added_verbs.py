"""A verb of someone else."""

from typing import Annotated

import typer

from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import echo


def greet(
    name: str = "", store: Annotated[str, typer.Option("--store", envvar="BENCHSUITE_STORE", help="A store.")] = "none"
) -> None:
    """Greet somebody."""
    if not name:
        raise UserError("--name is missing")
    echo(f"hello {name}, {store}")
