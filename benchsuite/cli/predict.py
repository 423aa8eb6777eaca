"""The verb `predict`: what a store's series, or a user's table, say of scales that were not measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchsuite.cli.app import PLANNER
from benchsuite.cli.common import DEFAULT_STORE, Store, Tabular, warn_of_damage
from benchsuite.cli.scaling import series_of
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import TableFormat, document
from benchsuite.contract.units import parse_bytes
from benchsuite.predict.scaling import exchange, outlook
from benchsuite.predict.scaling.batches import of_batch
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.from_store import from_series, from_table
from benchsuite.predict.scaling.model import Model
from benchsuite.predict.scaling.outlook import COLUMNS, TEST_COLUMNS, check_reach
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.scaling.table_input import has_layouts, read
from benchsuite.predict.theory.alpha_beta_fit import from_nccl_tests, from_rows
from benchsuite.results.compare.sides import fulfilling
from benchsuite.results.render.tables import Column, Row, as_csv, as_json, as_markdown, inline
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.report.scaling import titles
from benchsuite.results.scaling.series import Series
from benchsuite.results.store.store import ResultsStore

EPILOG = (
    "Columns: efficiency: samples/s over those of the smallest measured scale times as many ranks; compute, "
    "communication, bubble, imbalance, load: shares of the step that go to computation, communication which it does "
    "not hide, waiting for pipeline stages, for the slowest rank, for input; [ ]: 90 % interval. All follows from "
    "what was measured; what is assumed beside it stands below each table."
)

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
    typer.Option("--bucket-cap-mb", min=0.01, metavar="X", help="What if DDP's gradient buckets were of X MiB."),
]
NcclTests = Annotated[
    list[Path] | None,
    typer.Option(
        "--nccl-tests",
        metavar="FILE",
        help="What a program of nccl-tests printed, in place of `probe comm`; again for other ranks and ops.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only such trials or rows: parallelism=ddp; again."),
]
Network = Annotated[
    float, typer.Option("--network", min=0.001, metavar="X", help="What if the network were X times as fast.")
]
Storage = Annotated[
    float, typer.Option("--storage", min=0.001, metavar="X", help="What if shared storage were X times as fast.")
]
SharedBandwidth = Annotated[
    str | None,
    typer.Option("--shared-bandwidth", metavar="SIZE", help="What all ranks together read a second: 5GB."),
]
MixEnvironments = Annotated[
    bool, typer.Option("--mix-environments", help="Also join trials of unlike machines, libraries, file systems.")
]
UNTOLD = "a table does not tell of input; allowed: with --store"
SAID_TWICE = "staged input does not share a file system; give one of both"
CONTRADICTIONS = (
    (("--staging", "--storage", "--shared-bandwidth"), "--table", UNTOLD),
    (("--nccl-tests",), "--table", "a table does not tell what is sent; allowed: with --store"),
    (("--staging",), "--shared-bandwidth", SAID_TWICE),
    (("--batch-size",), "--table", "made of a store's trials alone; allowed: with --store"),
    (("--batch-size",), "--back-test", "choose measured ones with --where batch_size=N; give one of both"),
    (("--bucket-cap-mb",), "--table", "a table does not tell of buckets; allowed: with --store and --ranks"),
    (("--bucket-cap-mb",), "--back-test", "give one of both; allowed: with --store and --ranks"),
)
"""Options, what none of them goes with, and why."""
MAX_PRINTED = 20


def predict(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N,N", help="Numbers of ranks: 16,64,256.")] = "",
    store: Store = DEFAULT_STORE,
    table: Table = None,
    nccl_tests: NcclTests = None,
    where: Where = None,
    back_test: BackTest = False,
    batch_size: BatchSize = None,
    bucket_cap_mb: BucketCap = None,
    network: Network = 1.0,
    storage: Storage = 1.0,
    shared_bandwidth: SharedBandwidth = None,
    staging: Annotated[bool, typer.Option("--staging", help="What if the data lay on each node.")] = False,
    far: Annotated[bool, typer.Option("--far", help="Also beyond 8 times the most ranks measured.")] = False,
    mix_environments: MixEnvironments = False,
    format: Tabular = "table",
) -> None:
    """Predict steps, rates and utilization at more ranks, each with a 90 % interval."""
    counts = numbers(ranks, back_test)
    check_apart(
        {
            "--table": table is not None,
            "--store": table is None,
            "--nccl-tests": bool(nccl_tests),
            "--back-test": back_test,
            "--staging": staging,
            "--storage": storage != 1,
            "--shared-bandwidth": shared_bandwidth is not None,
            "--batch-size": batch_size is not None,
            "--bucket-cap-mb": bucket_cap_mb is not None,
        }
    )

    section = partial(_of_curve, counts, back_test, far, (network, storage, bucket_cap_mb))
    if table is not None:
        frame = fulfilling(read(table), where or []).reset_index(drop=True)
        if has_layouts(frame):
            raise UserError(
                f"table {table.name} has layouts: `benchsuite plan table {table}` is of benchsuite-plan, {PLANNER}"
            )
        sections = _of_curves(from_table(frame, table.name), section)
        sections = [replace(one, lines=[*one.lines, str(frame.attrs.get("read", ""))]) for one in sections]
    else:
        found = series_of(ResultsStore(store), where or [], mix_environments)
        limit = _rate(shared_bandwidth, "--shared-bandwidth")
        curves = _store_curves(ResultsStore(store), found, limit, staging, nccl_tests or [])
        sections = _of_batch(found, curves, batch_size, section)
    _show(sections, TEST_COLUMNS if back_test else COLUMNS, format)


def _of_curve(
    counts: tuple[int, ...], back_test: bool, far: bool, what_if: tuple[float, float, float | None], curve: Curve
) -> "Section":
    """The section of one curve: what is predicted of it, or how well it would have been."""
    if back_test:
        return Section(curve.title, *outlook.back_test(curve))
    return Section(curve.title, *outlook.foretold(_within_reach(curve, counts, far), counts, *what_if))


def _of_batch(
    found: Sequence[Series], curves: list[Curve], batch_size: int | None, section: Callable[[Curve], "Section"]
) -> list["Section"]:
    """Sections of the curves, or of what they were with another batch, and why others have none."""
    if batch_size is None:
        return _of_curves(curves, section)
    made, left_out = of_batch(found, curves, batch_size)
    return [*_of_curves(made, section), *(Section(title, [], [f"left out: {why}"]) for title, why in left_out)]


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


def check_apart(given: Mapping[str, bool]) -> None:
    """Refuse options that contradict each other, or that say of a store or table what it does not tell."""
    for options, beside, why in CONTRADICTIONS:
        named = [option for option in options if given[option]]
        if named and given[beside]:
            raise UserError(f"{', '.join(named)} with {beside}: {why}")


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


def _store_curves(
    store: ResultsStore, found: Sequence[Series], limit: float | None, staged: bool, nccl_tests: Sequence[Path]
) -> list[Curve]:
    """The curve of each series, with why probed collectives are not used."""
    comm = store.frame(kind="comm")
    warn_of_damage(store)
    probed = from_rows(comm)
    for path in nccl_tests:
        if not path.is_file():
            raise UserError(f"--nccl-tests {path}: no such file")
        probed |= from_nccl_tests(path.read_text(errors="replace"), path.name)
    curves = []
    for series, title in zip(found, titles(found), strict=True):
        curve = from_series(series, title, probed, limit, staged)
        curves.append(replace(curve, notes=(*curve.notes, *exchange.why(curve, series, comm, probed))))
    return curves


def _rate(text: str | None, option: str) -> float | None:
    """Bytes/s; None where none is given."""
    if text is None:
        return None
    found = float(parse_bytes(text, option))
    if not found:
        raise UserError(f"{option} {text!r}: allowed: above 0, such as 5GB")
    return found


def _of_curves(curves: Sequence[Curve], section: Callable[[Curve], Section]) -> list[Section]:
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


def _within_reach(curve: Curve, counts: Sequence[int], far: bool) -> Model:
    """The model of a curve that may be asked for these ranks."""
    model = fit(curve)
    check_reach(curve, counts, far)
    return model
