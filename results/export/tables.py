"""Tables for other programs: a frame of a store as CSV and as Parquet, every column of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from benchsuite.results.render.tables import as_csv, rows
from benchsuite.results.store.columns import Holds, holds, literal, quoted
from benchsuite.results.store.replacing import replacing
from benchsuite.results.store.segments import StoreError

COPY = "(FORMAT parquet, COMPRESSION zstd)"
DTYPES = {"integer": "Int64", "number": "float64", "boolean": "boolean"}


def csv_text(frame: pd.DataFrame) -> str:
    """CSV with a heading; what is missing is empty, lists are JSON."""
    return as_csv(rows(frame)) + "\n"


def write_parquet(frame: pd.DataFrame, out: Path) -> None:
    """Parquet with typed columns: lists of strings as lists, other nested values as JSON text, what is missing as null.

    Raises:
        StoreError: the file cannot be written. What was there before is untouched then.
    """
    try:
        with replacing(out) as made, duckdb.connect(":memory:") as connection:
            connection.execute("SET pandas_analyze_sample = 0; SET enable_progress_bar = false")
            table, columns = _typed(frame)
            connection.register("exported", table)
            connection.execute(f"COPY (SELECT {columns} FROM exported) TO {literal(str(made))} {COPY}")
    except duckdb.IOException as error:
        raise StoreError(f"{out}: cannot be written: {str(error).splitlines()[0]}") from error


def _typed(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The frame as DuckDB reads it without guessing, and the columns to select from it."""
    found = rows(frame)
    arrays: dict[str, Any] = {}
    selected: list[str] = []
    for name in map(str, frame.columns):
        values = [row[name] for row in found]
        held = holds(values)
        if held == "null":
            held = "number" if pd.api.types.is_numeric_dtype(frame[name]) else "string"
        arrays[name] = _array(values, held)
        column = quoted(name)
        selected.append(f"""from_json({column}, '["VARCHAR"]') AS {column}""" if held == "strings" else column)
    return pd.DataFrame(arrays), ", ".join(selected)


def _array(values: Sequence[Any], held: Holds) -> Any:
    if held in ("strings", "json"):
        values = [None if value is None else json.dumps(value, default=str) for value in values]
    return pd.Series(values, dtype=DTYPES.get(held, object))
