"""Print what a store holds."""

from functools import partial
from pathlib import Path

import pandas as pd
import typer
from rich.console import Console

from benchsuite.cli import TableFormat
from benchsuite.errors import refuse
from results.report.markdown import report as markdown
from results.report.sections import Section, sections
from results.report.summary import LEGEND, answer, trust
from results.report.tables import (
    ABSENT,
    COLUMNS,
    TRIAL_COLUMNS,
    Column,
    Row,
    as_csv,
    as_json,
    as_markdown,
    as_table,
    is_missing,
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
    columns = tuple(Column(name, partial(_cell, name)) for name in frame.columns)
    _print([*rows(frame)], columns, format)


def _cell(name: str, row: Row) -> str:
    return ABSENT if is_missing(row[name]) else str(row[name])


def report(store: Path, format: TableFormat) -> None:
    """The report on everything in a store."""
    opened = ResultsStore(store)
    if format is TableFormat.md:
        typer.echo(markdown(opened))
    elif format in (TableFormat.json, TableFormat.csv):
        _print([*rows(opened.frame())], TRIAL_COLUMNS, format)
    else:
        for section in sections(opened):
            section_table(section)
    _warn_of_damage(opened)


def _warn_of_damage(store: ResultsStore) -> None:
    if store.num_unreadable:
        typer.echo(f"warning: {store.num_unreadable} lines of {store.path} could not be read", err=True)


def section_table(section: Section) -> None:
    """A question, its answer, its points, and what the numbers rest on."""
    out = console()
    out.print(section.title, style="bold", markup=False)
    out.print(f"-> {answer(section.points)}", markup=False)
    out.print(as_table(section.points, COLUMNS))
    for line in troubles(section.trials):
        out.print(line, markup=False)
    out.print(trust(section.trials), markup=False)
    out.print(LEGEND, style="dim", markup=False)
