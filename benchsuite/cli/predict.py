"""The verb `predict`: what a store's series, or a user's table, say of scales that were not measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from benchsuite.cli.common import Tabular, warn_of_damage
from benchsuite.cli.scaling import series_of
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.terminal import TableFormat, document
from benchsuite.contract.units import parse_bytes
from benchsuite.predict.scaling import from_store, outlook
from benchsuite.predict.scaling.batches import LeftOut, of_batch
from benchsuite.predict.scaling.bucketing import with_buckets, with_network
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.from_store import from_series, from_table
from benchsuite.predict.scaling.outlook import COLUMNS, TEST_COLUMNS, check_reach
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.scaling.table_input import has_layouts, read
from benchsuite.predict.scaling.table_layouts import LayoutCurves
from benchsuite.predict.theory.alpha_beta_fit import from_rows
from benchsuite.results.compare.sides import fulfil
from benchsuite.results.render.tables import as_csv, as_json, as_markdown, inline, rows
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.report.scaling import titles
from benchsuite.results.store.store import ResultsStore

EPILOG = (
    "Columns: efficiency: samples/s over those of the smallest measured scale times as many ranks; compute, "
    "communication, bubble, imbalance, load: shares of the step that go to computation, communication which it does "
    "not hide, waiting for pipeline stages, for the slowest rank, for input; [ ]: 90 % interval. All follows from "
    "what was measured; what is assumed beside it stands below each table."
)

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
Table = Annotated[
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
Scaling = Annotated[
    str,
    typer.Option(
        "--scaling",
        help="Of layouts in a table: weak (the batch of a data-parallel rank stays) or strong (that of all).",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        metavar="N",
        help="What if a rank had N samples a step: from two measured batches, which may be others.",
    ),
]

BucketCap = Annotated[
    float | None,
    typer.Option(
        "--bucket-cap-mb",
        min=0.01,
        metavar="X",
        help="What if DDP's gradient buckets were of X MiB.",
    ),
]
NodeBandwidth = Annotated[
    str | None,
    typer.Option(
        "--node-bandwidth",
        metavar="SIZE",
        help="What a node sends a second, all its devices together (200GB), for a table of layouts on one node.",
    ),
]


def predict(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    store: Store = Path("benchsuite-store"),
    table: Table = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only such trials or rows: parallelism=ddp; again."),
    ] = None,
    back_test: BackTest = False,
    scaling: Scaling = "weak",
    batch_size: BatchSize = None,
    bucket_cap_mb: BucketCap = None,
    node_bandwidth: NodeBandwidth = None,
    network: Annotated[
        float, typer.Option("--network", min=0.001, metavar="X", help="What if the network were X times as fast.")
    ] = 1.0,
    storage: Annotated[
        float, typer.Option("--storage", min=0.001, metavar="X", help="What if shared storage were X times as fast.")
    ] = 1.0,
    shared_bandwidth: Annotated[
        str | None,
        typer.Option("--shared-bandwidth", metavar="SIZE", help="What all ranks together read a second: 5GB."),
    ] = None,
    staging: Annotated[bool, typer.Option("--staging", help="What if the data lay on each node.")] = False,
    far: Annotated[bool, typer.Option("--far", help="Also beyond 8 times the most ranks measured.")] = False,
    mix_environments: Annotated[
        bool, typer.Option("--mix-environments", help="Also join trials of unlike machines, libraries, file systems.")
    ] = False,
    format: Tabular = "table",
) -> None:
    """Predict steps, rates and utilization at more ranks, each with a 90 % interval."""
    asked = Asked(
        ranks=numbers(ranks, back_test),
        where=tuple(where or []),
        network=network,
        storage=storage,
        shared_bandwidth=shared_bandwidth,
        staging=staging,
        far=far,
        scaling=scaling,
        mix_environments=mix_environments,
        batch_size=batch_size,
        bucket_cap_mb=bucket_cap_mb,
        node_bandwidth=node_bandwidth,
    )
    predict_series(store, table, asked, back_test, format)


SCALING = ("weak", "strong")
MAX_PRINTED = 20
LAYOUTS_NEED = "allowed: with --table of layouts (hidden_size, num_layers, seq_len, microbatch)"
Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is to be predicted."""

    ranks: tuple[int, ...]
    where: tuple[str, ...] = ()
    network: float = 1.0
    storage: float = 1.0
    shared_bandwidth: str | None = None
    staging: bool = False
    far: bool = False
    scaling: str = "weak"
    mix_environments: bool = False
    batch_size: int | None = None
    bucket_cap_mb: float | None = None
    node_bandwidth: str | None = None


@dataclass(frozen=True)
class Section:
    """What is printed of one series: a row for each number of ranks, and lines."""

    title: str
    rows: Sequence[Row]
    lines: Sequence[str]


def numbers(text: str, back_test: bool) -> tuple[int, ...]:
    """Numbers of ranks from `16,64`, ascending.

    Raises:
        UserError: none, where they are needed, or something else than whole numbers.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words and not back_test:
        raise UserError("--ranks is missing: give numbers of ranks to predict, such as --ranks 16,64, or --back-test")
    wrong = [word for word in words if not word.isdigit() or int(word) < 1]
    if wrong:
        raise UserError(f"--ranks {wrong[0]!r}: allowed: whole numbers from 1, with commas: 16,64,256")
    return tuple(sorted({int(word) for word in words}))


def predict_series(store: Path, table: Path | None, asked: Asked, back_test: bool, format: TableFormat) -> None:
    """Predict, or test predictions, and print.

    Raises:
        UserError: what was asked cannot be, or the data do not carry it.
    """
    if asked.scaling not in SCALING:
        raise refuse("--scaling", asked.scaling, SCALING)
    _check_input(asked, table)
    _check_batch(asked, table, back_test)
    _check_buckets(asked, table, back_test)
    sections = _sections(store, table, asked, back_test)
    columns = TEST_COLUMNS if back_test else COLUMNS
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


def _check_input(asked: Asked, table: Path | None) -> None:
    """Refuse what says how input is stored where nothing reads it, or contradicts itself."""
    given = {
        "--staging": asked.staging,
        "--storage": asked.storage != 1,
        "--shared-bandwidth": asked.shared_bandwidth is not None,
    }
    named = [name for name, is_given in given.items() if is_given]
    if table is not None and named:
        raise UserError(f"{', '.join(named)} with --table: a table does not tell of input; allowed: with --store")
    if table is None and asked.node_bandwidth is not None:
        raise UserError(f"--node-bandwidth with --store: its trials tell; {LAYOUTS_NEED}")
    if asked.staging and asked.shared_bandwidth is not None:
        raise UserError(
            "--staging with --shared-bandwidth: staged input does not share a file system; give one of both"
        )


def _check_batch(asked: Asked, table: Path | None, back_test: bool) -> None:
    """Refuse another batch where none can be made, or nothing was measured to hold it against."""
    if asked.batch_size is not None and table is not None:
        raise UserError("--batch-size with --table: made of a store's trials alone; allowed: with --store")
    if asked.batch_size is not None and back_test:
        raise UserError(
            "--batch-size with --back-test: choose measured ones with --where batch_size=N; give one of both"
        )


def _check_buckets(asked: Asked, table: Path | None, back_test: bool) -> None:
    if asked.bucket_cap_mb is not None and (table is not None or back_test):
        with_ = "--table: a table does not tell of buckets" if table is not None else "--back-test: give one of both"
        raise UserError(f"--bucket-cap-mb with {with_}; allowed: with --store and --ranks")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines)


def _print(sections: Sequence[Section], columns: Any) -> None:
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


def _sections(store: Path, table: Path | None, asked: Asked, back_test: bool) -> list[Section]:
    if table is None:
        curves, left_out = _store_curves(store, asked)
        others = [Section(title, [], [f"left out: {why}"]) for title, why in left_out]
        return [*_of_curves(curves, asked, back_test), *others]
    frame = read(table)
    for text in asked.where:
        frame = frame[fulfil(rows(frame), text)]
    read_as = str(frame.attrs.get("read", ""))
    frame = frame.reset_index(drop=True)
    if has_layouts(frame):
        sections = _layout_sections(frame, table.name, asked, back_test)
    else:
        if asked.node_bandwidth is not None:
            raise UserError(f"--node-bandwidth: {table.name} tells no layouts; {LAYOUTS_NEED}")
        sections = _of_curves(from_table(frame, table.name), asked, back_test)
    return [replace(section, lines=[*section.lines, read_as]) for section in sections]


def _store_curves(path: Path, asked: Asked) -> tuple[list[Curve], list[LeftOut]]:
    """Of all series, or of those of another batch, with what is left out."""
    opened = ResultsStore(path)
    found = series_of(opened, list(asked.where), asked.mix_environments)
    rows = opened.frame(kind="comm")
    warn_of_damage(opened)
    probed = from_rows(rows)
    limit = _rate(asked.shared_bandwidth, "--shared-bandwidth")
    curves = [
        from_series(series, title, probed, limit, asked.staging)
        for series, title in zip(found, titles(found), strict=True)
    ]
    curves = [
        replace(curve, notes=(*curve.notes, *from_store.why(curve, series, rows, probed)))
        for curve, series in zip(curves, found, strict=True)
    ]
    return (curves, []) if asked.batch_size is None else of_batch(found, curves, asked.batch_size)


def _rate(text: str | None, option: str) -> float | None:
    """Bytes/s; None where none is given."""
    if text is None:
        return None
    found = float(parse_bytes(text, option))
    if not found:
        raise UserError(f"{option} {text!r}: allowed: above 0, such as 5GB")
    return found


def _of_curves(curves: Sequence[Curve], asked: Asked, back_test: bool) -> list[Section]:
    """A section for each curve, those without a prediction last, with the reason.

    Raises:
        UserError: none can be predicted; the reason of the one with the most scales.
    """
    sections: list[Section] = []
    problems: list[tuple[int, UserError]] = []
    for curve in curves:
        try:
            sections.append(_section(curve, asked, back_test))
        except UserError as error:
            problems.append((len(curve.points), error))
            sections.append(Section(curve.title, [], [f"left out: {str(error).removeprefix(f'{curve.title}: ')}"]))
    if len(problems) == len(sections):
        raise max(problems, key=lambda problem: problem[0])[1]
    return sorted(sections, key=lambda section: not section.rows)


def _section(curve: Curve, asked: Asked, back_test: bool) -> Section:
    if back_test:
        rows, lines = outlook.back_test(curve)
        return Section(curve.title, rows, lines)
    model = fit(curve)
    check_reach(curve, asked.ranks, asked.far)
    if asked.bucket_cap_mb is not None:
        model = with_buckets(model, asked.bucket_cap_mb)
    model = with_network(model, asked.network)
    plain = asked.network == asked.storage == 1
    rows = [outlook.row(model, model.at(ranks, asked.network, asked.storage), plain) for ranks in asked.ranks]
    return Section(curve.title, rows, outlook.assumptions(model, asked.ranks, asked.network, asked.storage))


def _layout_sections(frame: pd.DataFrame, name: str, asked: Asked, back_test: bool) -> list[Section]:
    own = _rate(asked.node_bandwidth, "--node-bandwidth")
    curves = replace(LayoutCurves.of(frame, name), node_bytes_per_s=own)
    if back_test:
        rows, lines = curves.back_test()
        return [Section(name, rows, lines)]
    curves.check_reach(asked.ranks, asked.far)
    known = replace(curves, network=asked.network)
    return [
        Section(
            f"{name} · {asked.scaling}", known.outlooks(asked.ranks, asked.scaling), known.assumptions(asked.scaling)
        )
    ]
