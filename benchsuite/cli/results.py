"""The verbs under `benchsuite results`: look into a store, and write it for other programs."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import pandas as pd
import typer

from benchsuite.cli.common import DEFAULT_STORE, ComparedKind, Plain, Store, Tabular, Where, warn_of_damage
from benchsuite.cli.report import matches, print_rows
from benchsuite.contract.errors import UserError, nearest, refuse
from benchsuite.contract.scratch import scratch
from benchsuite.contract.terminal import PlainFormat, TableFormat, document, echo
from benchsuite.results.export import methods as paragraph
from benchsuite.results.export import prometheus as textfile
from benchsuite.results.export import tables
from benchsuite.results.render.tables import (
    ABSENT,
    POINT_COLUMNS,
    TRIAL_COLUMNS,
    Column,
    Row,
    is_missing,
    rows,
)
from benchsuite.results.report.comm import columns_of
from benchsuite.results.report.io_profile import is_known, lines
from benchsuite.results.report.probes import COLUMNS_OF
from benchsuite.results.report.trace import trace
from benchsuite.results.store.frames import by_point
from benchsuite.results.store.manifest import PARQUET
from benchsuite.results.store.query import Limits
from benchsuite.results.store.record import Figures, TrialRecord
from benchsuite.results.store.record import Kind as RecordKind
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned

if TYPE_CHECKING:
    from benchsuite.results.gate.baseline import Check

results_app = typer.Typer(help="Look into a results store.", no_args_is_help=True, rich_markup_mode=None)
export_app = typer.Typer(help="Results in the form of other programs.", no_args_is_help=True, rich_markup_mode=None)
results_app.add_typer(export_app, name="export")

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; default: standard output.")]
By = Annotated[str, typer.Option("--by", help="trial, or point (median over repeats).")]
Kind = Annotated[RecordKind, typer.Option("--kind", help="trial, probe, comm or checkpoint.")]


@results_app.command("show")
def results_show(
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    by: Annotated[str, typer.Option("--by", help="trial, or point (median over repeats).")] = "trial",
    kind: Annotated[RecordKind, typer.Option("--kind", help="trial, probe, comm or checkpoint.")] = "trial",
) -> None:
    """One row per trial, probe, collective or checkpoint."""
    print_results(store, format, by, kind)


@results_app.command("query")
def results_query(
    query: Annotated[str, typer.Argument(help="SQL over the table `trials`; see --columns.")] = "",
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    columns: Annotated[
        bool, typer.Option("--columns", help="List the columns of `trials` with their types, and stop.")
    ] = False,
) -> None:
    """Run SQL (DuckDB) over the trials, such as: select label, au, "spec.data.format" from trials."""
    if columns:
        print_columns(store, format)
    else:
        print_query(store, query, format)


@results_app.command("compact")
def results_compact(
    store: Store = DEFAULT_STORE,
    format: Plain = "table",
) -> None:
    """Add Parquet of what was appended since the last time, for fast reading; sweeps may go on meanwhile."""
    compact(store, format)


def print_results(store: Path, format: TableFormat, by: str, kind: RecordKind = "trial") -> None:
    """One row per trial, or per point; of one kind of record."""
    if by not in ("trial", "point"):
        raise refuse("--by", by, ("trial", "point"))
    opened = ResultsStore(store)
    frame = opened.frame(by="point" if by == "point" else "trial", kind=kind)
    found = rows(frame)
    columns = COLUMNS_OF.get(kind) or (POINT_COLUMNS if by == "point" else TRIAL_COLUMNS)
    if not found and format == "table":
        echo(f"no records of kind {kind} in {store}{_other_kinds(ResultsStore(store))}")
    else:
        print_rows(found, columns_of(found) if kind == "comm" else columns, format)
    warn_of_damage(opened)


def _other_kinds(store: ResultsStore) -> str:
    kinds = Counter(record.kind for record in store.records())
    told = ", ".join(f"--kind {kind} ({count})" for kind, count in kinds.items())
    return f"; it has {told}" if told else ""


def print_query(store: Path, text: str, format: TableFormat) -> None:
    """The rows of a query."""
    opened = ResultsStore(store)
    frame: pd.DataFrame = opened.sql(text, Limits())
    columns = tuple(
        Column(name, partial(_cell, name), right=pd.api.types.is_numeric_dtype(frame[name])) for name in frame.columns
    )
    print_rows([*rows(frame)], columns, format)
    warn_of_damage(opened)


def print_columns(store: Path, format: TableFormat) -> None:
    """The columns that a query can name."""
    names = ("column", "type", "meaning")
    opened = ResultsStore(store)
    print_rows(opened.columns(), [Column(name, itemgetter(name), right=False) for name in names], format)
    warn_of_damage(opened)


def _cell(name: str, row: Row) -> str:
    return ABSENT if is_missing(row[name]) else str(row[name])


def compact(store: Path, format: PlainFormat) -> None:
    """Compact a store, and say what was done."""
    opened, unfinished = ResultsStore(store), store / PARQUET / "compaction"
    remove_abandoned(unfinished)
    with scratch() as spill:
        done = opened.compact(partial_folder(unfinished), spill)
    if format == "json":
        document(json.dumps(asdict(done), indent=1))
    else:
        echo(
            f"compacted {done.num_new:,} new records of {store}: {done.num_records:,} in {done.num_parts} Parquet "
            f"parts, {done.parquet_bytes / 1e6:,.1f} MB; segments ({done.segment_bytes / 1e6:,.1f} MB) stay"
        )
    warn_of_damage(opened)


@export_app.command("csv")
def export_csv(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    by: By = "trial",
    kind: Kind = "trial",
) -> None:
    """Every column as CSV, a row per trial or point."""
    write_csv(store, out, where or [], by, kind)


@export_app.command("parquet")
def export_parquet(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="Where to.")],
    store: Store = DEFAULT_STORE,
    where: Where = None,
    by: By = "trial",
    kind: Kind = "trial",
) -> None:
    """Every column as Parquet, typed, a row per trial or point."""
    write_parquet(store, out, where or [], by, kind)


@export_app.command("junit")
def export_junit(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also what `benchsuite check` finds in the store: regressions fail.")
    ] = False,
    kind: Kind = "trial",
) -> None:
    """Trials, or collectives, as JUnit XML: failed, oom and timeout are failures; the exit code stays 0."""
    write_junit(store, out, where or [], check, kind)


@export_app.command("prometheus")
def export_prometheus(
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.prom|DIR", help="A node exporter's textfile directory, or a file there."),
    ] = None,
    where: Where = None,
) -> None:
    """The newest session of every point as Prometheus text; a file is replaced at once, never half written."""
    write_prometheus(store, out, where or [])


@export_app.command("latex")
def export_latex(store: Store = DEFAULT_STORE, out: Out = None, where: Where = None) -> None:
    """Tables of points for papers: medians with ranges or intervals (LaTeX, booktabs)."""
    write_latex(store, out, where or [])


@export_app.command("methods")
def export_methods(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    latex: Annotated[bool, typer.Option("--latex", help="As LaTeX; default: plain text.")] = False,
) -> None:
    """A methods paragraph for papers, made from the records."""
    write_methods(store, out, where or [], latex)


@export_app.command("trace")
def export_trace(
    names: Annotated[
        list[str], typer.Argument(metavar="[TRIAL_ID] OUT.json", help="Which trial (default: the last), and where to.")
    ],
    store: Store = DEFAULT_STORE,
) -> None:
    """Write a trial's steps as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    write_trial_trace(store, names)


@export_app.command("asv")
def export_asv(
    store: Store = DEFAULT_STORE,
    config: Annotated[Path, typer.Option("--config", help="asv's configuration.")] = Path("asv.conf.json"),
    machine: Annotated[
        str | None, typer.Option("--machine", help="Whose results they are; default: the host of each trial.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", help="Of trials that know of none, or ran in a changed work tree.")
    ] = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="Only the sweep of this name.")] = None,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Those of a changed work tree too, apart: environment benchsuite-dirty.")
    ] = False,
) -> None:
    """Write sweeps, such as those of batch jobs, into asv's history; `asv show`, `compare`, `publish` read them."""
    from benchsuite.cli.common import warn_of_damage
    from benchsuite.results.export.asv import export
    from benchsuite.results.store.store import ResultsStore

    opened = ResultsStore(store)
    found = export(opened, config, machine, commit, sweep, dirty)
    for line in found.left_out:
        echo(line, err=True)
    for new in found.written:
        points = f"{new.num_points} point{'s' * (new.num_points > 1)}"
        commit_words = f"commit {new.commit[:8]}{', changed work tree' * new.is_changed}"
        echo(f"{new.sweep} · {points} · session {new.session} · {commit_words} · {new.machine}: {new.path}")
    warn_of_damage(opened)


@results_app.command("profile")
def results_profile(
    trial: Annotated[str, typer.Argument(metavar="[TRIAL_ID]", help="Which trial; default: the last profiled.")] = "",
    store: Store = DEFAULT_STORE,
    format: Plain = "table",
) -> None:
    """Print a trial's I/O profile (`sweep --profile io`)."""
    show_profile(store, trial, format)


@results_app.command("darshan")
def results_darshan(
    log: Annotated[Path, typer.Argument(help="A log of Darshan.")],
    under: Annotated[Path, typer.Option("--under", help="Only files below this folder.")] = Path("/"),
    format: Plain = "table",
) -> None:
    """Print the POSIX counters of a Darshan log in the form of an I/O profile."""
    show_darshan(log, under, format)


def write_csv(store: Path, out: Path | None, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as CSV."""
    _write(tables.csv_text(_grouped(store, where, by, kind)), out)


def write_parquet(store: Path, out: Path, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as Parquet."""
    tables.write_parquet(_grouped(store, where, by, kind), out)
    _told(out)


def write_junit(store: Path, out: Path | None, where: Sequence[str], check: bool, kind: RecordKind) -> None:
    """Trials, or records of another kind, and what the gate finds where that is asked for, as JUnit XML."""
    from benchsuite.results.export import junit as junit_xml

    if check and kind not in get_args(ComparedKind):
        raise UserError(f"--check --kind {kind}: allowed with --check: {', '.join(get_args(ComparedKind))}")
    trials = rows(_chosen(store, where, kind))
    _write(junit_xml.junit(trials, _checked(store, kind) if check else None), out)


def _checked(store: Path, kind: RecordKind) -> "Check":
    """What the gate finds; where it has nothing to judge, that and why."""
    from benchsuite.results.gate import baseline

    try:
        return baseline.check(ResultsStore(store), kind)
    except baseline.NothingToCheckError as error:
        return baseline.nothing(str(error))


def write_prometheus(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """The newest session of every point as Prometheus text."""
    text = textfile.prometheus(rows(_chosen(store, where)))
    if out is None:
        document(text.removesuffix("\n"))
    else:
        _told(textfile.write_textfile(text, out))


def write_latex(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """Tables of points as LaTeX."""
    from benchsuite.results.export import latex as latex_tables

    _write(latex_tables.point_tables(_chosen(store, where)) + "\n", out)


def write_methods(store: Path, out: Path | None, where: Sequence[str], latex: bool) -> None:
    """The methods paragraph."""
    trials = rows(_chosen(store, where))
    _write((paragraph.methods_latex if latex else paragraph.methods)(trials) + "\n", out)


def _chosen(store: Path, where: Sequence[str], kind: RecordKind = "trial") -> pd.DataFrame:
    """The records of a kind that all filters let through.

    Raises:
        UserError: a filter is wrong, or there are none.
    """
    opened = ResultsStore(store)
    found = opened.frame(kind=kind)
    if found.empty:
        kinds = ", ".join(get_args(RecordKind))
        raise UserError(f"store {store}: no record of kind {kind} to export; allowed: {kinds}")
    for text in where:
        found = found[matches(found, text)]
    warn_of_damage(opened)
    return found


def _grouped(store: Path, where: Sequence[str], by: str, kind: RecordKind) -> pd.DataFrame:
    if by not in ("trial", "point"):
        raise refuse("--by", by, ("trial", "point"))
    found = _chosen(store, where, kind)
    return found if by == "trial" else by_point(found, list(Figures.model_fields))


def _write(text: str, out: Path | None) -> None:
    """To a file, or to standard output."""
    if out is None:
        document(text.removesuffix("\n"))
        return
    write_whole(out, text)
    _told(out)


def _told(out: Path) -> None:
    echo(f"exported: {out}", err=True)


def write_trace(samples: dict[str, Any], label: str, out: Path) -> None:
    """Write a trial's steps as a trace.

    Raises:
        StoreError: it cannot be written.
    """
    write_whole(out, json.dumps(trace(samples, label)))
    echo(f"trace: {out} (open it in https://ui.perfetto.dev)", err=True)


def write_trial_trace(store_path: Path, names: list[str]) -> None:
    """Write a stored trial's steps as a trace; `names` is its id, if not the last, and the file.

    Raises:
        UserError: other arguments, or a trial without raw samples.
    """
    if len(names) > 2:
        raise UserError(f"results export trace: {len(names)} arguments; allowed: [TRIAL_ID] OUT.json")
    store = ResultsStore(store_path)
    wanted = names[0] if len(names) == 2 else ""
    record = chosen(store, wanted, _with_steps(store), "raw samples of steps")
    samples = store.steps(record)
    if samples is None:
        raise UserError(f"trial {record.trial_id}: its raw samples ({record.samples_file}) are not in {store.path}")
    write_trace(samples, record.label, Path(names[-1]))
    warn_of_damage(store)


def _with_steps(store: ResultsStore) -> list[TrialRecord]:
    """Trials that have steps of ranks in their raw samples; a watched loop has others."""
    trials = [record for record in store.latest() if record.kind == "trial" and record.sweep != "watch"]
    return [record for record in trials if record.samples_file]


def chosen(store: ResultsStore, wanted: str, records: list[TrialRecord], what: str) -> TrialRecord:
    """The record of a trial by its id, its point's or its own, or the last one.

    Raises:
        UserError: there is none.
    """
    if not records:
        raise UserError(f"store {store.path}: no trial with {what}")
    found = [record for record in records if wanted in ("", record.trial_id, record.point_id, record.record_id)]
    if not found:
        names = [record.trial_id for record in records]
        raise UserError(f"trial {wanted!r}: none with {what} in {store.path}{nearest(wanted, names)}")
    return max(found, key=lambda record: record.finished_at)


def print_profile(record: TrialRecord) -> None:
    """What was profiled beside a trial, if anything was."""
    if record.io_profile:
        echo(*lines(record.io_profile))
    for path in record.traces:
        echo(f"trace of PyTorch's profiler: {path} (open it in https://ui.perfetto.dev)")


def show_profile(store_path: Path, wanted: str, format: PlainFormat) -> None:
    """Print a stored trial's I/O profile."""
    store = ResultsStore(store_path)
    profiled = [record for record in store.latest() if is_known(record.io_profile)]
    record = chosen(store, wanted, profiled, "an I/O profile")
    if format == "json":
        document(json.dumps(record.io_profile, indent=1))
    else:
        echo(f"{record.trial_id} · {record.label}")
        print_profile(record)
    warn_of_damage(store)


def show_darshan(log: Path, under: Path, format: PlainFormat) -> None:
    """Print a Darshan log's POSIX counters as an I/O profile."""
    from benchsuite.storage.observe.darshan import profile_of_log

    profile = profile_of_log(log, under)
    if format == "json":
        document(json.dumps(profile, indent=1))
    else:
        echo(*lines(profile))
