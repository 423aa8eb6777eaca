"""Print what a store holds."""

from pathlib import Path

import pandas as pd
import typer
from rich.console import Console

from benchsuite.cli import TableFormat
from benchsuite.errors import refuse
from results.report.summary import LEGEND, answer, trust
from results.report.tables import (
    COLUMNS,
    TRIAL_COLUMNS,
    Column,
    Row,
    as_csv,
    as_json,
    as_markdown,
    as_table,
    rows,
    troubles,
)
from results.store import ResultsStore

MIN_WIDTH = 150
"""Tables are not squeezed into less where output is not a terminal."""


def console() -> Console:
    """Standard output, wide where it is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=MIN_WIDTH)


def _print(found: list[Row], columns: tuple[Column, ...], format: TableFormat) -> None:
    if format is TableFormat.json:
        typer.echo(as_json(found))
    elif format is TableFormat.csv:
        typer.echo(as_csv(found))
    elif format is TableFormat.md:
        typer.echo(as_markdown(found, columns))
    else:
        console().print(as_table(found, columns))


def results(store: Path, format: TableFormat, by: str) -> None:
    """One row per trial, or per point."""
    if by == "trial":
        _print([*rows(ResultsStore(store).frame())], TRIAL_COLUMNS, format)
    elif by == "point":
        _print([*rows(ResultsStore(store).frame(by="point"))], COLUMNS, format)
    else:
        raise refuse("--by", by, ("trial", "point"))


def query(store: Path, text: str, format: TableFormat) -> None:
    """The rows of a query."""
    frame: pd.DataFrame = ResultsStore(store).sql(text)
    columns = tuple(Column(name, lambda row, name=name: str(row[name])) for name in frame.columns)  # type: ignore[misc]
    _print([*rows(frame)], columns, format)


def report(store: Path, format: TableFormat) -> None:
    """The report on everything in a store."""
    from results.report.markdown import report as as_report

    opened = ResultsStore(store)
    if format is TableFormat.md:
        typer.echo(as_report(opened))
    elif format in (TableFormat.json, TableFormat.csv):
        _print([*rows(opened.frame())], TRIAL_COLUMNS, format)
    else:
        for sweep in dict.fromkeys(record.sweep for record in opened.records()):
            sweep_table(opened, sweep)


def sweep_table(store: ResultsStore, sweep: str, session: str | None = None) -> None:
    """One sweep's question, answer and table of points."""
    out = console()
    points = [row for row in rows(store.frame(by="point")) if row["sweep"] == sweep]
    trials = [row for row in rows(store.frame()) if row["sweep"] == sweep]
    if session is not None:
        points, trials = ([row for row in found if row["session"] == session] for found in (points, trials))
    question = next((row["question"] for row in trials if row["question"]), sweep)
    out.print(question, style="bold", markup=False)
    out.print(f"-> {answer(points)}", markup=False)
    out.print(as_table(points, COLUMNS))
    for line in troubles(trials):
        out.print(line, markup=False)
    out.print(trust(trials), markup=False)
    out.print(LEGEND, style="dim", markup=False)
