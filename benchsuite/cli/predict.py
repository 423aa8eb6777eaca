"""The verb `predict`: what a store's series, or a user's table, say of more ranks than were measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchsuite.cli.common import DEFAULT_STORE, Store, Tabular, warn_of_damage
from benchsuite.cli.scaling import series_of
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import TableFormat, document
from benchsuite.predict import outlook, table_series
from benchsuite.predict.curve import Curve
from benchsuite.predict.from_store import from_series
from benchsuite.predict.more_ranks import rank_counts
from benchsuite.predict.outlook import COLUMNS, TEST_COLUMNS
from benchsuite.results.compare.sides import fulfilling
from benchsuite.results.render.tables import Column, Row, as_csv, as_json, as_markdown, inline
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.report.scaling import titles
from benchsuite.results.store.store import ResultsStore

EPILOG = (
    "Columns: efficiency: samples/s over those of the smallest measured scale times as many ranks; AU: accelerator "
    "utilization, where every scale has one; [ ]: 90 % interval. A measured scale is answered by its measurement. "
    "Below each table stands what the prediction rests on, and what it cannot say."
)

TableFile = Annotated[
    Path | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="Measured times from a CSV or JSON, not a store; `benchsuite schema table` has its columns.",
    ),
]
BackTest = Annotated[
    bool,
    typer.Option(
        "--back-test",
        help="How far to trust it here: hide the largest scales, predict them from the others, print the errors.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Keep trials or rows with KEY=VALUE. May be repeated."),
]
MixEnvironments = Annotated[
    bool, typer.Option("--mix-environments", help="Also join trials of unlike machines, libraries, file systems.")
]
MAX_PRINTED = 20


@dataclass(frozen=True)
class Section:
    """What is printed of one series: a row for each number of ranks, and lines."""

    title: str
    rows: Sequence[Row]
    lines: Sequence[str]


def predict(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    store: Store = DEFAULT_STORE,
    table_file: TableFile = None,
    where: Where = None,
    back_test: BackTest = False,
    far: Annotated[bool, typer.Option("--far", help="Also beyond 8 times the most ranks measured.")] = False,
    mix_environments: MixEnvironments = False,
    format: Tabular = "table",
) -> None:
    """Predict steps, rates and utilization at more ranks, each with a 90 % interval."""
    counts = rank_counts(ranks, is_needed=not back_test, instead="--back-test")

    def section(curve: Curve) -> Section:
        if back_test:
            return Section(curve.title, *outlook.back_test(curve))
        rows, lines = outlook.predict(curve, counts)
        outlook.check_reach(curve, counts, far)
        return Section(curve.title, rows, lines)

    if table_file is not None:
        sections = _sections(_table_curves(table_file, where or []), section)
    else:
        opened = ResultsStore(store)
        found = series_of(opened, where or [], mix_environments)
        warn_of_damage(opened)
        sections = _sections([*map(from_series, found, titles(found))], section)
    _show(sections, TEST_COLUMNS if back_test else COLUMNS, format)


def _table_curves(path: Path, where: list[str]) -> list[Curve]:
    """The series of a table's rows that all filters let through, each with how the table was read."""
    frame = fulfilling(table_series.read(path), where).reset_index(drop=True)
    read = str(frame.attrs.get("read", ""))
    return [replace(curve, notes=(*curve.notes, read)) for curve in table_series.curves(frame, path.name)]


def _sections(curves: Sequence[Curve], section: Callable[[Curve], Section]) -> list[Section]:
    """The section of each curve, those without a prediction last, with the reason.

    Raises:
        UserError: none can be predicted; the reason of the one with the most scales.
    """
    sections: list[Section] = []
    problems: list[tuple[int, UserError]] = []
    for curve in curves:
        try:
            sections.append(section(curve))
        except UserError as error:
            problems.append((len(curve.points), error))
            sections.append(Section(curve.title, [], [f"left out: {str(error).removeprefix(f'{curve.title}: ')}"]))
    if len(problems) == len(sections):
        raise max(problems, key=lambda problem: problem[0])[1]
    return sorted(sections, key=lambda one: not one.rows)


def _show(sections: Sequence[Section], columns: Sequence[Column], format: TableFormat) -> None:
    if format == "json":
        document(as_json([{"series": s.title, "rows": list(s.rows), "assumptions": list(s.lines)} for s in sections]))
    elif format == "csv":
        document(as_csv([{"series": section.title, **row} for section in sections for row in section.rows]))
    elif format == "md":
        tables = [as_markdown(s.rows, columns) + "\n\n" if s.rows else "" for s in sections]
        texts = (
            f"**{inline(s.title)}**\n\n{shown}{_bullets(s.lines)}" for s, shown in zip(sections, tables, strict=True)
        )
        document("\n\n".join(texts))
    else:
        _print(sections, columns)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines)


def _print(sections: Sequence[Section], columns: Sequence[Column]) -> None:
    out = console()
    for section in sections[:MAX_PRINTED]:
        out.print(section.title, style="bold", markup=False)
        if section.rows:
            out.print(fitting_table(section.rows, columns, out))
        for line in section.lines:
            out.print(f"- {line}", markup=False)
        out.print()
    if len(sections) > MAX_PRINTED:
        left = len(sections) - MAX_PRINTED
        out.print(f"{left} more not shown: choose with --where, or --format csv", markup=False)
