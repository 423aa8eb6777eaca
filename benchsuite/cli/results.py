"""The verbs under `benchsuite results`: show and query the records of a store, and export them."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import pandas as pd
import typer

from benchsuite.cli.common import (
    DEFAULT_STORE,
    GROUP,
    ComparedKind,
    Plain,
    Store,
    Tabular,
    Where,
    has_runs,
    print_facts,
    take_in_lost_runs,
    warn_of_damage,
)
from benchsuite.cli.report import print_rows
from benchsuite.contract.errors import UserError, nearest
from benchsuite.contract.scratch import scratch
from benchsuite.contract.terminal import document, echo
from benchsuite.results.compare.sides import NothingFulfilsError, fulfilling
from benchsuite.results.export import prometheus, tables
from benchsuite.results.render import operators
from benchsuite.results.render.tables import ABSENT, POINT_COLUMNS, TRIAL_COLUMNS, Column, Row, is_missing, rows
from benchsuite.results.render.words import counted, size
from benchsuite.results.report.io_profile import is_known, lines
from benchsuite.results.report.probes import COLUMNS_OF, columns_of
from benchsuite.results.report.trace import trace
from benchsuite.results.store.frames import by_point, record_frame
from benchsuite.results.store.manifest import PARQUET
from benchsuite.results.store.query import Limits
from benchsuite.results.store.record import Kind as RecordKind
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned

if TYPE_CHECKING:
    from benchsuite.results.gate.baseline import Check

results_app = typer.Typer(help="Show, query and export the records of a store.", **GROUP)
export_app = typer.Typer(help="Write results for other programs.", **GROUP)
results_app.add_typer(export_app, name="export")

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write; default: standard output.")]
Grouping = Literal["trial", "point"]
"""What a row of a table stands for."""
By = Annotated[Grouping, typer.Option("--by", help="What a row is: trial, or point (median over repeats).")]
Kind = Annotated[RecordKind, typer.Option("--kind", help="Kind of records: trial, probe, comm or checkpoint.")]


@results_app.command("show")
def results_show(
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    by: By = "trial",
    kind: Kind = "trial",
) -> None:
    """Print one row per trial, probe, collective or checkpoint."""
    opened = ResultsStore(store)
    records = rows(opened.frame(by=by, kind=kind))
    columns = COLUMNS_OF.get(kind) or (POINT_COLUMNS if by == "point" else TRIAL_COLUMNS)
    if not records and format == "table":
        echo(f"no records of kind {kind} in {store}{_other_kinds(opened)}")
    else:
        print_rows(records, columns_of(records) if kind == "comm" else columns, format)
    warn_of_damage(opened)


def _other_kinds(store: ResultsStore) -> str:
    """Return the end of a sentence with the kinds that a store has; empty where it has no records."""
    counts = Counter(record.kind for record in store.records())
    options = ", ".join(f"--kind {kind} ({count})" for kind, count in counts.items())
    return f"; it has {options}" if options else ""


@results_app.command("query")
def results_query(
    query: Annotated[str, typer.Argument(help="SQL over the table `trials`; see --columns.")] = "",
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    columns: Annotated[
        bool, typer.Option("--columns", help="Print the columns of `trials` with their types, and run no query.")
    ] = False,
) -> None:
    """Run SQL (DuckDB) over the trials, such as: select label, au, "spec.data.format" from trials."""
    opened = ResultsStore(store)
    if columns:
        names = ("column", "type", "meaning")
        print_rows(opened.columns(), [Column(name, itemgetter(name), right=False) for name in names], format)
    else:
        frame = opened.sql(query, Limits())
        frame_columns = [
            Column(name, partial(_cell, name), right=pd.api.types.is_numeric_dtype(frame[name]))
            for name in frame.columns
        ]
        print_rows(rows(frame), frame_columns, format)
    warn_of_damage(opened)


def _cell(name: str, row: Row) -> str:
    return ABSENT if is_missing(row[name]) else str(row[name])


@results_app.command("compact")
def results_compact(store: Store = DEFAULT_STORE, format: Plain = "table") -> None:
    """Write Parquet of the records appended since the last time, for fast reading. Sweeps may go on meanwhile."""
    opened, unfinished = ResultsStore(store), store / PARQUET / "compaction"
    remove_abandoned(unfinished)
    with scratch() as spill:
        result = opened.compact(partial_folder(unfinished), spill)
    line = (
        f"compacted {counted(result.num_new, 'new record')} of {store}: {result.num_records:,} in "
        f"{counted(result.num_parts, 'Parquet part')}, {size(result.parquet_bytes)}; segments "
        f"({size(result.segment_bytes)}) stay"
    )
    print_facts(format, asdict(result), [line])
    warn_of_damage(opened)


@export_app.command("csv")
def export_csv(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    by: By = "trial",
    kind: Kind = "trial",
) -> None:
    """Write every column as CSV, a row per trial or point."""
    _write(tables.csv_text(_select(store, where, kind, by)), out)


@export_app.command("parquet")
def export_parquet(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="File to write.")],
    store: Store = DEFAULT_STORE,
    where: Where = None,
    by: By = "trial",
    kind: Kind = "trial",
) -> None:
    """Write every column as typed Parquet, a row per trial or point."""
    tables.write_parquet(_select(store, where, kind, by), out)
    _print_exported(out)


@export_app.command("junit")
def export_junit(
    store: Store = DEFAULT_STORE,
    out: Out = None,
    where: Where = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also write what `benchsuite check` finds; a regression is a failure.")
    ] = False,
    kind: Kind = "trial",
) -> None:
    """Write trials or collectives as JUnit XML: failed, oom and timeout are failures. The exit code stays 0."""
    from benchsuite.results.export import junit

    if check and kind not in get_args(ComparedKind):
        raise UserError(f"--check --kind {kind}: allowed with --check: {', '.join(get_args(ComparedKind))}")
    trials = rows(_select(store, where, kind))
    _write(junit.junit(trials, _run_check(store, kind) if check else None), out)


def _run_check(store: Path, kind: RecordKind) -> "Check":
    """Return what `check` finds; a result without points where there is nothing to judge."""
    from benchsuite.results.gate import baseline

    try:
        return baseline.check(ResultsStore(store), kind)
    except baseline.NothingToCheckError as error:
        return baseline.nothing(str(error))


@export_app.command("prometheus")
def export_prometheus(
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.prom|DIR", help="Textfile directory of a node exporter, or a file there."),
    ] = None,
    where: Where = None,
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", min=1, help="Write it again so often, until Ctrl+C.")
    ] = None,
) -> None:
    """Write the newest session of every point, and what trains now, as Prometheus text; a file at once, never half."""
    written = _write_prometheus(store, out, where, may_be_empty=every is not None)
    if written is not None:
        _print_exported(written)
    while every is not None:
        time.sleep(every)
        _write_prometheus(store, out, where, may_be_empty=True)


def _write_prometheus(store: Path, out: Path | None, where: Sequence[str] | None, may_be_empty: bool) -> Path | None:
    """Write it to standard output or to a file, which is returned."""
    frame = _with_running(ResultsStore(store))
    if frame.empty and not may_be_empty:
        raise _nothing_to_export(store)
    try:
        text = "" if frame.empty else prometheus.prometheus(rows(fulfilling(frame, where or ())))
    except NothingFulfilsError:
        if not may_be_empty:
            raise
        text = ""
    if out is None:
        document(text.removesuffix("\n"))
        return None
    return prometheus.write_textfile(text, out)


def _with_running(store: ResultsStore) -> pd.DataFrame:
    """The trials of a store, and those of `benchsuite run` and `watch` that go on."""
    take_in_lost_runs(store.path)
    frame = store.frame()
    warn_of_damage(store)
    if not has_runs(store.path):
        return frame
    from benchsuite.watcher.run_trainings import records_so_far

    running = record_frame(records_so_far(store)).assign(status=prometheus.RUNNING)
    return pd.concat([each for each in (frame, running) if not each.empty]) if len(running) else frame


@export_app.command("latex")
def export_latex(store: Store = DEFAULT_STORE, out: Out = None, where: Where = None) -> None:
    """Write tables of points for papers: medians with ranges or intervals (LaTeX, booktabs)."""
    from benchsuite.results.export import latex

    _write(latex.point_tables(_select(store, where)) + "\n", out)


def _select(
    store: Path, where: Sequence[str] | None, kind: RecordKind = "trial", by: Grouping = "trial"
) -> pd.DataFrame:
    """Return the records of a kind that meet all conditions, by trial or by point.

    Raises:
        UserError: a condition is wrong, or no record is left.
    """
    opened = ResultsStore(store)
    frame = opened.frame(kind=kind)
    if frame.empty:
        raise _nothing_to_export(store, kind)
    frame = fulfilling(frame, where or ())
    warn_of_damage(opened)
    return frame if by == "trial" else by_point(frame)


def _nothing_to_export(store: Path, kind: RecordKind = "trial") -> UserError:
    return UserError(f"store {store}: no record of kind {kind} to export; allowed: {', '.join(get_args(RecordKind))}")


def _write(text: str, out: Path | None) -> None:
    """Write to a file, or to standard output."""
    if out is None:
        document(text.removesuffix("\n"))
        return
    write_whole(out, text)
    _print_exported(out)


def _print_exported(out: Path) -> None:
    echo(f"exported: {out}", err=True)


@export_app.command("trace")
def export_trace(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[TRIAL_ID] OUT.json", help="The trial (default: the last), and the file to write."),
    ],
    store: Store = DEFAULT_STORE,
) -> None:
    """Write a trial's steps as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    if len(names) > 2:
        raise UserError(f"results export trace: {len(names)} arguments; allowed: [TRIAL_ID] OUT.json")
    opened = ResultsStore(store)
    trial = names[0] if len(names) == 2 else ""
    record = find_record(opened, trial, _trials_with_steps(opened), "raw samples of steps")
    samples = opened.steps(record)
    if samples is None:
        raise UserError(f"trial {record.trial_id}: its raw samples ({record.samples_file}) are not in {store}")
    write_trace(samples, record.label, Path(names[-1]))
    warn_of_damage(opened)


def write_trace(samples: dict[str, Any], label: str, out: Path) -> None:
    """Write a trial's steps as a trace.

    Raises:
        StoreError: the file cannot be written.
    """
    write_whole(out, json.dumps(trace(samples, label)))
    echo(f"trace: {out} (open it in https://ui.perfetto.dev)", err=True)


def _trials_with_steps(store: ResultsStore) -> list[TrialRecord]:
    """Return the trials whose raw samples are steps of ranks; those of watched loops are not."""
    trials = [record for record in store.trials() if record.sweep != "watch"]
    return [record for record in trials if record.samples_file]


@export_app.command("asv")
def export_asv(
    store: Store = DEFAULT_STORE,
    machine: Annotated[
        str | None, typer.Option("--asv-machine", help="Name of the machine in asv; default: the host of each trial.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", help="Commit of trials that have none, or ran in a changed work tree.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Export one session, with all its trials at --commit."),
    ] = None,
) -> None:
    """Write sweeps, such as those of batch jobs, into the history of this folder's asv repository."""
    from benchsuite.results.export.asv import export

    opened = ResultsStore(store)
    exported = export(opened, Path("asv.conf.json"), machine, commit, session)
    for line in exported.left_out:
        echo(line, err=True)
    for new in exported.written:
        commit_words = f"commit {new.commit[:8]}{', changed work tree' * new.is_changed}"
        points, session = counted(len(new.points), "point"), new.trials[0].session
        echo(f"{new.sweep} · {points} · session {session} · {commit_words} · {new.machine}: {new.path}")
    warn_of_damage(opened)


@results_app.command("profile")
def results_profile(
    trial: Annotated[
        str, typer.Argument(metavar="[TRIAL_ID]", help="The trial; default: the last one with a profile.")
    ] = "",
    store: Store = DEFAULT_STORE,
    format: Plain = "table",
) -> None:
    """Print a trial's I/O profile (`sweep --profile io`)."""
    opened = ResultsStore(store)
    profiled = [record for record in opened.trials() if is_known(record.io_profile)]
    record = find_record(opened, trial, profiled, "an I/O profile")
    print_facts(format, record.io_profile, [f"{record.trial_id} · {record.label}", *profile_lines(record)])
    warn_of_damage(opened)


def profile_lines(record: TrialRecord) -> Iterator[str]:
    """Yield the lines of a trial's profiles; none where it was not profiled."""
    yield from lines(record.io_profile) if record.io_profile else ()
    yield from operators.lines(record.figures.model_dump())
    yield from (f"trace of PyTorch's profiler: {path} (open it in https://ui.perfetto.dev)" for path in record.traces)


def find_record(store: ResultsStore, name: str, records: list[TrialRecord], what: str) -> TrialRecord:
    """Return the last record whose trial, point or record has this id; for an empty name the last of all.

    Raises:
        UserError: there is none; `what` says in the message what all of `records` have.
    """
    if not records:
        raise UserError(f"store {store.path}: no trial with {what}")
    matches = [record for record in records if name in ("", record.trial_id, record.point_id, record.record_id)]
    if not matches:
        ids = [record.trial_id for record in records]
        raise UserError(f"trial {name!r}: none with {what} in {store.path}{nearest(name, ids)}")
    return max(matches, key=lambda record: record.finished_at)


@results_app.command("darshan")
def results_darshan(
    log: Annotated[Path, typer.Argument(help="A Darshan log.")],
    under: Annotated[Path, typer.Option("--under", help="Count files below this folder.")] = Path("/"),
    format: Plain = "table",
) -> None:
    """Print the POSIX counters of a Darshan log in the form of an I/O profile."""
    from benchsuite.storage.observe.darshan import profile_of_log

    profile = profile_of_log(log, under)
    print_facts(format, profile, lines(profile))
