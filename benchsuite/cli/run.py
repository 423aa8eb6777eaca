"""The verb `run`: measure a training command of anyone's as it is."""

from typing import Annotated, Literal

import typer

from benchsuite.cli.common import DEFAULT_STORE, Session, Store
from benchsuite.contract.session import check_session

SETTINGS = {"allow_interspersed_args": False}
"""Whatever follows the command is the command's."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="What trains, as it is typed.")],
    store: Store = DEFAULT_STORE,
    session: Session = "default",
    name: Annotated[
        str | None, typer.Option("--name", help="Of the training in reports; default: the script's.")
    ] = None,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=1, help="Print a line so often.")] = 60.0,
    ceiling: Annotated[
        Literal["replay"] | None,
        typer.Option("--ceiling", help="replay: measure AU by training on some batches again. This changes the model."),
    ] = None,
) -> None:
    """Measure a training command of yours as it is, and say what holds it back: at its end, and at SIGTERM."""
    from benchsuite.watcher import run as running
    from benchsuite.watcher.run_folder import Options

    options = Options(store, name, check_session(session), every, ceiling is not None)
    raise typer.Exit(running.end_as(running.run(command, options)))
