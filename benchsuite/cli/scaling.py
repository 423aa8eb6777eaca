"""The verb `scaling`: weak and strong scaling efficiency of a store's series."""

from collections.abc import Sequence
from typing import Annotated

import pandas as pd
import typer

from benchsuite.cli.common import DEFAULT_STORE, Pdf, Store, Svg, Tabular, Where, drawn_by, warn_of_damage
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import TableFormat, document, echo
from benchsuite.results.charts.scaling import chart_of
from benchsuite.results.compare.sides import fulfilling
from benchsuite.results.export.charts import draw_into
from benchsuite.results.render.latex import NEEDED, as_latex
from benchsuite.results.render.tables import as_csv, as_json, is_missing
from benchsuite.results.render.terminal import fitting_table, say
from benchsuite.results.report.scaling import (
    COLUMNS,
    LEGEND,
    answer,
    as_objects,
    basis,
    caption,
    markdown,
    notes,
    point_rows,
    titles,
)
from benchsuite.results.scaling.series import Series, find_series
from benchsuite.results.store.store import ResultsStore


def scaling(
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    where: Where = None,
    mix_environments: Annotated[
        bool,
        typer.Option("--mix-environments", help="Also join trials of different machines, libraries and file systems."),
    ] = False,
    svg: Svg = None,
    pdf: Pdf = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")] = False,
) -> None:
    """Print weak and strong scaling efficiency with intervals, what the loss goes to, and the laws that fit."""
    opened = ResultsStore(store)
    series = series_of(opened, where or [], mix_environments)
    for kind, folder in (("svg", svg), ("pdf", pdf)):
        if folder is not None:
            origin = _origin(opened, kind, where or [], mix_environments)
            chart = chart_of(series, titles(series), "Scaling efficiency")
            figures = draw_into(folder, kind, [("scaling", chart)], origin=origin)
            echo(f"figure: {figures[0]}", err=True)
    _print(series, format, latex)
    warn_of_damage(opened)


def _origin(store: ResultsStore, kind: str, where: list[str], mix: bool) -> str:
    """Return the origin of a figure, with the command that draws it again."""
    options = [word for condition in where for word in ("--where", condition)]
    if mix:
        options.append("--mix-environments")
    return drawn_by("scaling", "--store", store.path.name, *options, f"--{kind}", "DIR")


def series_of(store: ResultsStore, where: list[str], mix: bool) -> list[Series]:
    """Return the series of a store among the trials that meet all conditions.

    Raises:
        UserError: there is none.
    """
    trials = fulfilling(store.frame(), where)
    series = find_series(trials, mix)
    if not series:
        sizes = sorted({int(size) for size in trials.get("spec.world_size", pd.Series()) if not is_missing(size)})
        raise UserError(
            f"store {store.path}: no scaling series: no trials differ only in ranks, with the same batch per rank or "
            f"in all; {len(trials)} trials, ranks {', '.join(map(str, sizes)) or 'unknown'}; `benchsuite sweep "
            "weak-scaling` measures one; `benchsuite report` has points that differ in anything else, such as a batch"
        )
    return series


def _print(all_series: Sequence[Series], format: TableFormat, latex: bool) -> None:
    titled = [*zip(all_series, titles(all_series), strict=True)]
    if latex:
        tables = [
            as_latex(point_rows(series, title), COLUMNS, caption(series, title), f"scaling-{number}")
            for number, (series, title) in enumerate(titled, 1)
        ]
        document(NEEDED + "\n\n".join(tables))
    elif format == "json":
        document(as_json(as_objects(all_series)))
    elif format == "csv":
        document(as_csv([row for series, title in titled for row in point_rows(series, title)]))
    elif format == "md":
        document(markdown(all_series))
    else:
        _print_tables(titled)


def _print_tables(titled: Sequence[tuple[Series, str]]) -> None:
    out = console()
    for series, title in titled:
        say(out, f"{title} · {basis(series)}", "bold")
        say(out, f"-> {answer(series)}")
        out.print(fitting_table(point_rows(series, title), COLUMNS, out))
        for line in notes(series):
            say(out, line)
        out.print()
    for line in LEGEND.split("\n"):
        say(out, line, "dim")
