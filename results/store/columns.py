"""Records as typed columns: what a Parquet part holds, and how parts of different shape are read as one table."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from benchsuite.results.store.frames import DOTTED, NESTED, dotted, frame_of
from benchsuite.results.store.nearest import nearest
from benchsuite.results.store.place import StoreError
from benchsuite.results.store.record import FIGURES, FORMER_FIGURES, Kind, Record
from benchsuite.results.store.segments import LINE, OFFSET, SEGMENT, Stored

Holds = Literal["null", "integer", "number", "boolean", "string", "strings", "json"]
"""What a column holds. `strings` (lists of strings) and `json` (anything else) are stored as JSON text."""
SHOWN = tuple(f"{name}." for name in DOTTED)
"""How columns begin that are shown beside those of the contract."""
SQL_TYPES: Mapping[str, str] = {
    "null": "VARCHAR",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "strings": "VARCHAR[]",
    "json": "VARCHAR",
}
TEXTS = pd.StringDtype("python", na_value=np.nan)
"""Texts as Python's, which records share: pyarrow's would be copied for each reading."""
OF_TYPE: Mapping[frozenset[type], Holds] = {
    frozenset(): "null",
    frozenset({int}): "integer",
    frozenset({float}): "number",
    frozenset({int, float}): "number",
    frozenset({bool}): "boolean",
    frozenset({str}): "string",
}
MAX_INTEGER = 2**63 - 1


def _annotated(annotation: Any) -> Holds:
    """What a field of the contract holds, whatever its values."""
    if annotation == list[str]:
        return "strings"
    types = set(get_args(annotation) or (annotation,)) - {NoneType}
    return "integer" if types == {int} else "number" if types <= {int, float} else "string"


OWN = tuple(name for name in Record.model_fields if name not in NESTED)
_own, _KNOWN_FIELDS = itemgetter(*OWN), frozenset(Record.model_fields)


@cache
def contract(kind: Kind) -> Mapping[str, Holds]:
    """Columns that are always there. Figures are floating point, so that any may be missing."""
    figures = {name: _annotated(field.annotation) for name, field in FIGURES[kind].model_fields.items()}
    return {name: _annotated(Record.model_fields[name].annotation) for name in OWN} | {
        name: "number" if held == "integer" else held for name, held in figures.items()
    }


@cache
def _known_figures(kind: Kind) -> frozenset[str]:
    return frozenset({*FIGURES[kind].model_fields, *FORMER_FIGURES.values()})


def flat(stored: Stored) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of a record's columns; with fields that only a newer version knows, for it to find."""
    fields, record = stored.fields, stored.record
    known = _known_figures(record.kind)
    nested = dotted(record)
    if not fields.keys() <= _KNOWN_FIELDS:
        nested |= {name: value for name, value in fields.items() if name not in _KNOWN_FIELDS}
    figures = fields.get("figures") or {}
    if not figures.keys() <= known:
        nested |= {name: value for name, value in figures.items() if name not in known}
    values = (*_own(record.__dict__), *record.figures.__dict__.values(), *nested.values())
    return (*contract(record.kind), *nested), values


def holds(values: Iterable[Any]) -> Holds:
    """What values have in common."""
    present = [value for value in values if value is not None]
    types = frozenset(map(type, present))
    found: Holds = OF_TYPE.get(types, "json")
    if found == "integer" and max(map(abs, present)) > MAX_INTEGER:
        return "json"
    if types == {list} and all(isinstance(item, str) for value in present for item in value):
        return "strings"
    return found


def unified(found: Iterable[str]) -> str:
    """What a column holds, given what its parts hold."""
    kinds = set(found) - {"null"}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else "null"
    return "number" if kinds == {"integer", "number"} else "json"


def array(values: list[Any], held: str) -> Any:
    """Values as pandas holds them and DuckDB reads them without guessing."""
    if held == "number":
        return np.array(values, dtype=np.float64)
    if held in ("integer", "boolean"):
        missing = np.array([value is None for value in values], dtype=np.bool_)
        known = [value or 0 for value in values]
        if held == "integer":
            return pd.arrays.IntegerArray(np.array(known, dtype=np.int64), missing)
        return pd.arrays.BooleanArray(np.array(known, dtype=np.bool_), missing)
    if held in ("strings", "json"):
        values = [None if value is None else json.dumps(value, default=str) for value in values]
    return pd.array(values, dtype=object)


class Batch:
    """Records of one kind, gathered for one table."""

    def __init__(self, kind: Kind) -> None:
        self._contract = contract(kind)
        self._shapes: dict[tuple[str, ...], tuple[list[int], list[tuple[Any, ...]]]] = {}
        self._places: list[tuple[str, int]] = []
        self._lines: list[bytes] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, stored: Stored) -> None:
        """One row more."""
        names, values = flat(stored)
        indices, rows = self._shapes.setdefault(names, ([], []))
        indices.append(len(self._places))
        rows.append(values)
        self._places.append(stored.place)
        self._lines.append(stored.line)

    def _columns(self) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [None] * len(self) for name in self._contract}
        for names, (indices, rows) in self._shapes.items():
            for name, values in zip(names, zip(*rows, strict=True), strict=True):
                if len(indices) == len(self):
                    columns[name] = list(values)
                    continue
                column = columns.setdefault(name, [None] * len(self))
                for index, value in zip(indices, values, strict=True):
                    column[index] = value
        return columns

    def _named(self) -> Iterator[tuple[str, Holds, list[Any]]]:
        """Each column: its name, what it holds, and its values.

        Names that differ by case alone share none: SQL cannot tell them apart, so a later one gets a number.
        """
        taken: dict[str, int] = {}
        for name, values in self._columns().items():
            count = taken[name.lower()] = taken.get(name.lower(), 0) + 1
            name = name if count == 1 else f"{name}_{count}"
            yield name, self._contract.get(name) or holds(values), values

    def table(self, with_lines: bool = True) -> tuple[pd.DataFrame, dict[str, Holds]]:
        """The rows as a frame that DuckDB reads without guessing, and what its columns hold.

        Columns without any value are in the second only.
        """
        arrays: dict[str, Any] = {}
        held: dict[str, Holds] = {}
        for name, holds_, values in self._named():
            held[name] = holds_
            if holds_ != "null":
                arrays[name] = array(values, holds_)
        arrays[SEGMENT] = pd.array([segment for segment, _ in self._places], dtype=object)
        arrays[OFFSET] = np.array([offset for _, offset in self._places], dtype=np.int64)
        if with_lines:
            arrays[LINE] = pd.array([line.decode().rstrip("\n") for line in self._lines], dtype=object)
        return pd.DataFrame(arrays, copy=False), held

    def frame(self, rows: Sequence[int]) -> pd.DataFrame:
        """Some of the rows in this order, as `plain` gives them of a query of all columns: those of SHOWN alone."""
        shown = {
            name: _of_python([values[row] for row in rows], held)
            for name, held, values in self._named()
            if name in self._contract or name.startswith(SHOWN)
        }
        return pd.DataFrame(shown, index=range(len(rows)), copy=False)


def allowed(name: str, names: list[str]) -> str:
    """The nearest of many names."""
    return f"allowed: {', '.join(names[:5])}, ... ({len(names)} names){nearest(name, names)}"


def check_columns(wanted: Iterable[str], known: Sequence[str]) -> None:
    """
    Raises:
        StoreError: there is no such column.
    """
    for name in wanted:
        if name not in known:
            raise StoreError(f"frame: column {name!r} is unknown; {allowed(name, list(known))}")


def frame_of_tail(
    tail: Iterable[Stored], kind: Kind, columns: Sequence[str] | None, session: str | None
) -> pd.DataFrame:
    """The last attempts among records that are in memory, as `query.Table.frame` gives them, without a database.

    Raises:
        StoreError: there is no such column.
    """
    held = [stored for stored in tail if stored.record.kind == kind]
    last = dict[str, int]()
    for row in sorted(range(len(held)), key=lambda row: (held[row].record.finished_at, held[row].place)):
        last[held[row].record.trial_id] = row  # stays where the first attempt put it
    shown = [row for row in last.values() if session in (None, held[row].record.session)]
    if columns is not None and {*columns} <= {*OWN}:
        return frame_of({name: [getattr(held[row].record, name) for row in shown] for name in columns})
    batch = Batch(kind)
    for stored in held:
        batch.add(stored)
    whole = batch.frame(shown)
    check_columns(columns or (), [*map(str, whole.columns)])
    return whole if columns is None else whole[[*columns]]


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL takes it."""
    return "'" + text.replace("'", "''") + "'"


def selected(columns: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """SQL for the wanted columns of a part with these columns, each as wanted."""
    given = {name.lower(): held for name, held in columns.items()}
    found = ((name, given.get(name.lower(), "null"), held) for name, held in wanted.items())
    return ", ".join(f"{_as(name, holds, held)} AS {quoted(name)}" for name, holds, held in found)


def _as(name: str, given: str, wanted: str) -> str:
    column = quoted(name)
    if given == "null":
        return f"NULL::{SQL_TYPES[wanted]}"
    if wanted == "strings":
        return f"""from_json({column}, '["VARCHAR"]')"""
    if wanted == "json" and given not in ("strings", "json"):
        return f"CAST(to_json({column}) AS VARCHAR)"
    return f"CAST({column} AS {SQL_TYPES[wanted]})" if given != wanted else column


def plain(frame: pd.DataFrame, held: Mapping[str, str]) -> pd.DataFrame:
    """A frame of DuckDB's with what pandas would have made of the records: lists, no masked types, JSON read."""
    return pd.DataFrame({name: _plain(frame[name], held.get(str(name), "")) for name in frame.columns}, copy=False)


def _plain(column: "pd.Series[Any]", held: str) -> Any:
    if held == "json":
        read = {text: json.loads(text) for text in column.dropna().unique()}
        return pd.Series([read.get(text) for text in column], dtype=object, index=column.index).infer_objects()
    if isinstance(column.dtype, pd.BooleanDtype):
        return column.to_numpy(dtype=bool) if not column.hasnans else column.astype(object).where(column.notna(), None)
    if isinstance(column.dtype, pd.api.extensions.ExtensionDtype) and pd.api.types.is_integer_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan) if column.hasnans else column.to_numpy(dtype=np.int64)
    if column.dtype == object:
        return pd.Series([_item(value) for value in column], dtype=object, index=column.index)
    return column


def _of_python(values: list[Any], held: Holds) -> Any:
    """Values of a record's JSON as a column of a frame."""
    if held == "number":
        return np.array(values, dtype=np.float64)
    if held in ("integer", "boolean") and None not in values:
        return np.array(values, dtype=np.int64 if held == "integer" else np.bool_)
    if held == "integer":
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    if held == "string" and any(value is not None for value in values):
        return pd.array(values, dtype=TEXTS)
    column = pd.Series(values, dtype=object)
    return column.infer_objects() if held == "json" else column


def _item(value: Any) -> Any:
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        return list(value)
    return None if value is pd.NA else value
