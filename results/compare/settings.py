"""Settings in which two sets of records differ altogether, which is why none of their points is in both."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchsuite.results.compare.nights import PATHS, WITHOUT_IDENTITY
from benchsuite.results.render.tables import is_missing
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.record import Record

Apart = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""Settings (`data.num_workers`) that differ, with the values of both sides as a filter writes them."""
MOST_TOLD = 3
"""Settings that a sentence names, and values of each."""
WITHOUT_MEANING = {*(f"data.{name}" for name in PATHS), *(f"measure.{name}" for name in WITHOUT_IDENTITY)}


def settings_apart(one: Sequence[Record], other: Sequence[Record]) -> Apart:
    """The settings of which no value of one side is one of the other's; paths are none."""
    sides = [[flatten("", record.spec) for record in side] for side in (one, other)]
    names = dict.fromkeys(name for side in sides for spec in side for name in spec if name not in WITHOUT_MEANING)
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name in names:
        first, second = ([*dict.fromkeys(_written(spec.get(name)) for spec in side)] for side in sides)
        if not {*first} & {*second}:
            found[name] = first, second
    return found


def in_words(apart: Apart, between: str) -> str:
    """A few of them with a few of their values: `data.num_workers (1 against 2)`."""
    return few((f"{name} ({between.join(map(few, sides))})" for name, sides in apart.items()), " and ")


def few(texts: Iterable[str], between: str = ", ") -> str:
    """The first MOST_TOLD texts, and how many more there are."""
    told = [*texts]
    more = [f"{len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
    return between.join([*told[:MOST_TOLD], *more])


def _written(value: Any) -> str:
    return "none" if is_missing(value) else str(value).lower() if isinstance(value, bool) else str(value)
