"""One side of a comparison: a store's path, or a filter over the trials of a store."""

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchsuite.results.render.tables import Row, is_missing
from benchsuite.results.render.tables import rows as rows_of
from benchsuite.results.store.frames import row
from benchsuite.results.store.nearest import nearest
from benchsuite.results.store.record import Kind, Record
from benchsuite.results.store.store import ResultsStore, StoreError

SHORT = {"commit": "env.commit", "host": "env.host"}
PARTS = ("spec", "dataset", "env")
CHANGED = "-dirty"
"""How a commit with changes in the work tree ends, as git describes it."""
DESCRIBED = re.compile(r".+-\d+-g([0-9a-f]+)")
"""A commit after a tag, likewise."""
CONDITION = re.compile(r",(?=[\w.]+=)")
"""Between two conditions; a comma that no KEY= follows belongs to a value."""
MAX_TOLD = 8
"""Values of a column that an error names."""
MIN_DIGITS = 7
"""The fewest digits of a record's commit that may be the beginning of what was written."""


def side(store: Path, text: str, kind: Kind = "trial") -> list[Record]:
    """The ok trials, or records of another kind, that a side of a comparison names, the last attempt of each.

    Args:
        text: the path of a store, or `KEY=VALUE[,KEY=VALUE...]` over `store`: session, commit (HASH; HASH-dirty of a
            changed work tree), date (a day, or FROM..TO, both included), or any column of its trials, such as label,
            or as a sweep file writes them: world_size, data.format.

    Raises:
        StoreError: neither a store nor a filter, an unknown key, or nothing matches.
    """
    return records_of(opened(store, text), text, kind)


def opened(store: Path, text: str) -> ResultsStore:
    """The store whose trials a side names.

    Raises:
        StoreError: neither a store nor a filter.
    """
    own = ResultsStore(text)
    if own.exists():
        return own
    if "=" not in text:
        raise StoreError(f"{text!r} is neither a store nor a filter; allowed: DIR, session=NAME, date=A..B, KEY=V")
    return ResultsStore(store)


def records_of(store: ResultsStore, text: str, kind: Kind = "trial") -> list[Record]:
    """The records of a side in its store (`opened`).

    Raises:
        StoreError: an unknown key, or nothing matches.
    """
    records = [record for record in store.latest() if record.status == "ok" and record.kind == kind]
    return records if store.path == Path(text) else filtered(records, text)


def filtered(records: list[Record], text: str) -> list[Record]:
    """The records that fulfil every condition of a filter; else as `fulfil`."""
    fulfilled = fulfil([row(record) for record in records], text)
    return [record for record, is_kept in zip(records, fulfilled, strict=True) if is_kept]


class NothingFulfilsError(StoreError):
    """No trial is what a filter asks for: one may be later."""


def fulfilling(trials: pd.DataFrame, filters: Sequence[str]) -> pd.DataFrame:
    """The rows of a frame that all filters let through; else as `fulfil`."""
    for text in filters:
        trials = trials[fulfil(rows_of(trials), text)]
    return trials


def fulfil(rows: Sequence[Row], text: str) -> list[bool]:
    """Which rows of trials fulfil every condition of a filter, `KEY=VALUE[,KEY=VALUE...]`.

    Raises:
        StoreError: no filter, or an unknown key.
        NothingFulfilsError: nothing matches.
    """
    known = dict.fromkeys(name for one in rows for name in one)
    found = [True] * len(rows)
    for condition, key, value in _conditions(text):
        column = _column(key, known)
        matches = _matcher(column, value, known)
        left = [one for one, is_kept in zip(rows, found, strict=True) if is_kept]
        found = [is_kept and matches(one) for one, is_kept in zip(rows, found, strict=True)]
        if not any(found):
            raise NothingFulfilsError(f"filter {text!r}: no trial has {condition}{_there(column, value, left)}")
    return found


def _conditions(text: str) -> list[tuple[str, str, str]]:
    """Each condition as it stands, its key and its value, which may hold commas."""
    found = []
    for condition in CONDITION.split(text):
        key, equals, value = condition.partition("=")
        if not equals or not value:
            raise StoreError(f"filter {text!r}: {condition!r} should be KEY=VALUE, such as data.format=hdf5")
        found.append((condition, key, value))
    return found


def apart(one: str, other: str, records: list[Record]) -> dict[str, tuple[str, str]]:
    """Settings that both filters give, and give another value: column to the values of A and B."""
    first, second = ({key: value for _, key, value in _conditions(text)} for text in (one, other))
    known = {name for record in records for name in row(record)}
    found = {_column(key, known): (first[key], second[key]) for key in first if key in second}
    return {column: values for column, values in found.items() if column.startswith("spec.") and len({*values}) > 1}


def _column(key: str, known: Collection[str]) -> str:
    """The column that a key means: by its name, or as a sweep file writes it, such as data.format."""
    named = [SHORT.get(key, key), *(f"{part}.{key}" for part in PARTS)]
    return next((name for name in named if name in known), named[0])


def _matcher(key: str, value: str, known: Collection[str]) -> Callable[[Row], bool]:
    if key == "date":
        first, dots, last = value.partition("..")
        low, high = first, (last or "9999") if dots else first
        return lambda one: low <= one["started_at"][: max(len(low), 1)] and one["started_at"][: len(high)] <= high
    if known and key not in known and key in SHORT.values():
        raise StoreError(
            f"filter key {key.removeprefix('env.')!r}: no record tells it; allowed: session, date, any column"
        )
    if known and key not in known:
        columns = sorted(name.removeprefix("spec.") for name in known)
        some = [name for name in ("workload", "precision", "world_size", "status") if name in columns] or columns[:4]
        hint = nearest(key, ["session", "commit", "date", *columns], cutoff=0.4)
        allowed = f"session, commit, date, any column, such as {', '.join(some)}"
        raise StoreError(f"filter key {key!r} is unknown; allowed: {allowed}{hint}")
    if key == "env.commit":
        return lambda one: _is_commit(str(one.get("env.commit") or ""), value)
    return lambda one: _same(one.get(key), value)


def _is_commit(told: str, wanted: str) -> bool:
    """Whether a record's commit is the one that was written, with more or fewer digits than the record has.

    Trials of a changed work tree are those of HASH-dirty, never of HASH.
    """
    if not told or told.endswith(CHANGED) != wanted.endswith(CHANGED):
        return False
    digits, asked = told.removesuffix(CHANGED), wanted.removesuffix(CHANGED)
    described = DESCRIBED.fullmatch(digits)
    known = [digits, *([described[1]] if described else [])]
    return any(one.startswith(asked) or (len(one) >= MIN_DIGITS and asked.startswith(one)) for one in known)


def _same(found: Any, wanted: str) -> bool:
    """Whether a column's value is what was written; numbers by value."""
    if is_missing(found):
        return wanted in ("null", "none")
    if isinstance(found, bool):
        return str(found).lower() == wanted.lower()
    if isinstance(found, int | float):
        try:
            return float(wanted) == float(found)
        except ValueError:
            return False
    return str(found) == wanted


def _there(key: str, wanted: str, rows: Sequence[Row]) -> str:
    """What values there are, and which of them is the nearest."""
    if key == "date":
        days = sorted({one["started_at"][:10] for one in rows})
        return f"; there are: {days[0]}..{days[-1]}" if days else ""
    values = sorted({str(one[key]) for one in rows if not is_missing(one.get(key))})
    told = f"; there are: {', '.join(values[:MAX_TOLD])}{nearest(wanted, values)}"
    return told if rows else "; the store has no ok trial"
