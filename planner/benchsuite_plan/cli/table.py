"""The verb `plan table`: one model fitted to a table of measured layouts, and what it says of others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import TableFormat, document
from benchsuite.contract.units import parse_bytes
from benchsuite.predict import more_ranks
from benchsuite.predict.more_ranks import rank_counts
from benchsuite.results.compare.sides import fulfilling
from benchsuite.results.render.tables import ABSENT, Column, Row, as_csv, as_json, as_markdown, inline
from benchsuite.results.render.terminal import fitting_table
from benchsuite_plan.tables.table_input import read
from benchsuite_plan.tables.table_layouts import LayoutCurves, beside_series

EPILOG = (
    "Columns: efficiency: samples/s over those of the layout's largest measured scale times as many ranks; compute, "
    "communication, bubble: shares of the step that go to computation, exchange which it does not hide, waiting for "
    "pipeline stages; [ ]: 90 % interval. What is assumed stands below the table."
)

Scaling = Annotated[
    Literal["weak", "strong"],
    typer.Option("--scaling", help="weak: the batch of a data-parallel rank stays; strong: that of all ranks."),
]
NodeBandwidth = Annotated[
    str | None,
    typer.Option(
        "--node-bandwidth",
        metavar="SIZE",
        help="What a node sends a second, all its devices together (200GB), for a table of one node.",
    ),
]
Rows = Annotated[
    Path | None,
    typer.Option("--rows", metavar="FILE", help="Layouts to predict: a table of the same columns, without times."),
]
BackTest = Annotated[
    bool, typer.Option("--back-test", help="Hide the largest scales, predict them from the others, print the errors.")
]
Where = Annotated[
    list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Keep rows with KEY=VALUE. May be repeated.")
]
Network = Annotated[
    float, typer.Option("--network", min=0.001, metavar="X", help="What if the network were X times as fast.")
]


def table(
    file: Annotated[Path, typer.Argument(help="CSV or JSON; `benchsuite plan schema table` has its columns.")],
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    rows: Rows = None,
    back_test: BackTest = False,
    scaling: Scaling = "weak",
    where: Where = None,
    node_bandwidth: NodeBandwidth = None,
    network: Network = 1.0,
    far: Annotated[bool, typer.Option("--far", help="Also beyond 8 times the most ranks measured.")] = False,
    format: Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")] = "table",
) -> None:
    """Predict each layout of a table of measured ones at more ranks, or layouts of your own."""
    if rows is not None and back_test:
        raise UserError("--rows with --back-test: rows that were measured are tested; give one of both")
    has_ranks = back_test or rows is not None
    counts = rank_counts(ranks, is_needed=not has_ranks, instead="--rows or --back-test")
    frame = fulfilling(read(file), where or []).reset_index(drop=True)
    known = LayoutCurves.of(frame, file.name, network, _rate(node_bandwidth))
    columns, name = COLUMNS, f"{file.name} · {scaling}"
    if back_test:
        (found, lines), columns, name = known.back_test(), TEST_COLUMNS, file.name
    elif rows is not None:
        wanted = read(rows, timed=False)
        known.check_reach(wanted["ranks"].astype(int).tolist(), far)
        found, lines, name = known.of_rows(wanted), known.assumptions(None), f"{file.name} · {rows.name}"
    else:
        known.check_reach(counts, far)
        found, lines = known.outlooks(counts, scaling), known.assumptions(scaling)
        lines = [*lines, *beside_series(frame, file.name)]
    _show(name, found, [*lines, str(frame.attrs.get("read", ""))], columns, format)


def _rate(text: str | None) -> float | None:
    """The bytes/s of --node-bandwidth; None where none is given."""
    if text is None:
        return None
    found = float(parse_bytes(text, "--node-bandwidth"))
    if not found:
        raise UserError(f"--node-bandwidth {text!r}: allowed: above 0, such as 5GB")
    return found


def _share(name: str) -> Column:
    """A column of a part of the step."""

    def cell(row: Row) -> str:
        value = row.get(f"{name}_share")
        return ABSENT if value is None else f"{value * 100 + 0.0:.0f} %".replace("-0 %", "0 %")

    return Column(name, cell)


LAYOUT = Column("layout", lambda row: str(row.get("label", "")), right=False, optional=True)
COLUMNS = (LAYOUT, *more_ranks.COLUMNS, *map(_share, ("compute", "communication", "bubble")))
TEST_COLUMNS = (replace(LAYOUT, optional=False), *more_ranks.TEST_COLUMNS)


def _show(
    name: str, rows: Sequence[dict[str, Any]], lines: Sequence[str], columns: Sequence[Column], format: TableFormat
) -> None:
    """Print a row for each prediction, and below them what they rest on."""
    if format == "json":
        return document(as_json([{"series": name, "rows": list(rows), "assumptions": list(lines)}]))
    if format == "csv":
        return document(as_csv([{"series": name, **row} for row in rows]))
    if format == "md":
        told = "\n".join(f"- {inline(line)}" for line in lines)
        return document(f"**{inline(name)}**\n\n{as_markdown(rows, columns)}\n\n{told}")
    out = console()
    out.print(name, style="bold", markup=False)
    out.print(fitting_table(rows, columns, out))
    for line in lines:
        out.print(f"- {line}", markup=False)
