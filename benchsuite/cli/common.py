"""What several verbs share: options, and the lines that tell what a reading of a store passed over."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchsuite.contract.exit_codes import STORE_VARIABLE
from benchsuite.contract.terminal import PlainFormat, TableFormat, document, echo
from benchsuite.contract.trial_spec import ProfileName
from benchsuite.contract.version import VERSION
from benchsuite.launch.registry import LAUNCHERS
from benchsuite.results.render.words import counted, typed
from benchsuite.results.store.segments import UNTOLD
from benchsuite.results.store.store import ResultsStore

GROUP: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": None}
"""How a group of verbs is made."""
ComparedKind = Literal["trial", "comm"]
"""Kinds of records that are compared and checked."""
Store = Annotated[Path, typer.Option("--store", envvar=STORE_VARIABLE, help="Results store.", show_default=True)]
DEFAULT_STORE = Path("benchsuite-store")
MAX_NAMED = 8
Session = Annotated[str, typer.Option("--session", help="Measuring campaign; a new one measures anew.")]
LauncherName = Annotated[
    str, typer.Option("--launcher", help=f"Who starts the ranks: auto, {', '.join(LAUNCHERS)}, or an added one.")
]
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field.")]
Profile = Annotated[
    ProfileName | None,
    typer.Option("--profile", help="Also record what readers do with files (strace: no AU then), or torch's profile."),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only such trials: data.format=hdf5, session=tonight; again."),
]
Tabular = Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")]
Plain = Annotated[PlainFormat, typer.Option("--format", help="table or json.")]


def tell(format: PlainFormat, facts: object, lines: Iterable[str]) -> None:
    """Print facts as JSON where that is asked for, else the lines that tell them to people."""
    if format == "json":
        document(json.dumps(facts, indent=1))
    else:
        echo(*lines)


def damage_lines(store: ResultsStore) -> Iterator[str]:
    """What the last reading passed over, and why."""
    newer = [line for line in store.passed if line.newer]
    bad = [line for line in store.passed if not line.newer and line.owner is None]
    if bad:
        first = f"{bad[0].segment}, byte {bad[0].offset}: {bad[0].reason}"
        yield f"warning: {counted(len(bad), 'line')} of {store.path} could not be read; the first: {first}"
    if newer:
        yield f"warning: {counted(len(newer), 'record')} of {store.path} of a newer schema: upgrade benchsuite"
    if store.damage:
        yield f"warning: {store.damage}"
    yield from left_out_lines()


def left_out_lines() -> Iterator[str]:
    """Which segments were passed over as this user may not read them, and whose they are; each is told once."""
    while UNTOLD:
        store, owners = UNTOLD.popitem()
        named = [f"{segment} of {owner}" for segment, owner in sorted(owners.items())[:MAX_NAMED]]
        more = f" and {len(owners) - MAX_NAMED} more" if len(owners) > MAX_NAMED else ""
        what = counted(len(owners), "segment")
        yield f"warning: left out {what} of {store} that this user may not read: {', '.join(named)}{more}"


def warn_of_damage(store: ResultsStore) -> None:
    """Say so on standard error."""
    for line in damage_lines(store):
        echo(line, err=True)


def drawn_by(*words: str) -> str:
    """What a figure's metadata tell: the product's version and the command that draws it again."""
    return f"drawn by benchsuite {VERSION}: {typed('benchsuite', *words)}"
