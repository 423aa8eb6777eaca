"""What several verbs share: options, and warnings about lines of a store that could not be read."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from benchsuite.contract.exit_codes import STORE_VARIABLE
from benchsuite.contract.terminal import PlainFormat, TableFormat, document, echo
from benchsuite.contract.version import VERSION
from benchsuite.launch.registry import LAUNCHERS
from benchsuite.results.render.words import counted, typed

if TYPE_CHECKING:  # some verbs start in a moment, and need no records for it
    from benchsuite.results.store.store import ResultsStore

GROUP: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": None}
"""Settings of a typer application that holds a group of verbs."""
ComparedKind = Literal["trial", "comm"]
"""Kinds of records that `compare` and `check` take."""
Store = Annotated[Path, typer.Option("--store", envvar=STORE_VARIABLE, help="Results store.", show_default=True)]
DEFAULT_STORE = Path("benchsuite-store")
MAX_NAMED = 8
Session = Annotated[str, typer.Option("--session", help="Name of the measuring campaign; a new one measures anew.")]
LauncherName = Annotated[
    str, typer.Option("--launcher", help=f"What starts the ranks: auto, {', '.join(LAUNCHERS)}, or a plug-in's.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field. May be repeated.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="KEY=VALUE", help="Keep trials with KEY=VALUE, such as data.format=hdf5. May be repeated."
    ),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="DIR", help="Draw each chart as an SVG file in DIR.")]
Pdf = Annotated[Path | None, typer.Option("--pdf", metavar="DIR", help="Draw each chart as a PDF file in DIR.")]
Tabular = Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")]
Plain = Annotated[PlainFormat, typer.Option("--format", help="table or json.")]


def take_in_lost_runs(store: Path) -> None:
    """Make records of what a killed `benchsuite run` had measured, so that nothing is lost."""
    if has_runs(store):
        from benchsuite.results.store.store import ResultsStore
        from benchsuite.watcher.run_trainings import take_in

        take_in(ResultsStore(store))


def has_runs(store: Path) -> bool:
    """Whether trainings under `benchsuite run` or `watch` have left something in a store; not so where it is dead."""
    with suppress(OSError):
        return any((store / "runs").iterdir())
    return False


def print_facts(format: PlainFormat, facts: object, lines: Iterable[str], indent: int | None = 1) -> None:
    """Print facts as JSON where the format is json, else as lines for people; without an indent as one line."""
    if format == "json":
        document(json.dumps(facts, indent=indent))
    else:
        echo(*lines)


def damage_lines(store: "ResultsStore") -> Iterator[str]:
    """Yield a warning for each reason why the last reading of a store passed over lines."""
    newer = [line for line in store.passed if line.newer]
    damaged = [line for line in store.passed if not line.newer and line.owner is None]
    if damaged:
        first = f"{damaged[0].segment}, byte {damaged[0].offset}: {damaged[0].reason}"
        yield f"warning: {counted(len(damaged), 'line')} of {store.path} could not be read; the first: {first}"
    if newer:
        yield f"warning: {counted(len(newer), 'record')} of {store.path} of a newer schema: upgrade benchsuite"
    if store.damage:
        yield f"warning: {store.damage}"
    yield from foreign_segment_lines()


def foreign_segment_lines() -> Iterator[str]:
    """Yield a warning for each store with segments that this user may not read, and remove it from `UNTOLD`."""
    from benchsuite.results.store.segments import UNTOLD

    while UNTOLD:
        store, owners = UNTOLD.popitem()
        named = [f"{segment} of {owner}" for segment, owner in sorted(owners.items())[:MAX_NAMED]]
        more = f" and {len(owners) - MAX_NAMED} more" if len(owners) > MAX_NAMED else ""
        segments = counted(len(owners), "segment")
        yield f"warning: left out {segments} of {store} that this user may not read: {', '.join(named)}{more}"


def warn_of_damage(store: "ResultsStore") -> None:
    """Print on standard error what the last reading of a store passed over."""
    for line in damage_lines(store):
        echo(line, err=True)


def drawn_by(*words: str) -> str:
    """Return a figure's origin for its metadata: the product's version, and the command that draws it again."""
    return f"drawn by benchsuite {VERSION}: {typed('benchsuite', *words)}"
