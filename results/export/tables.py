"""Tables for other programs: a frame of a store as CSV and as Parquet, every column of it."""

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from benchsuite.results.render.tables import as_csv, rows
from benchsuite.results.store.columns import array, holds, literal, selected
from benchsuite.results.store.place import StoreError
from benchsuite.results.store.replacing import replacing

COPY = "(FORMAT parquet, COMPRESSION zstd)"


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
    held: dict[str, str] = {}
    for name in map(str, frame.columns):
        values = [row[name] for row in found]
        held[name] = holds(values)
        if held[name] == "null":
            held[name] = "number" if pd.api.types.is_numeric_dtype(frame[name]) else "string"
        arrays[name] = array(values, held[name])
    return pd.DataFrame(arrays), selected(held, held)
