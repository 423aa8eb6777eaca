"""Results, traces and profiles written for other programs: chosen, converted, and put where they are asked for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchsuite.cli.damage import warn_of_damage
from benchsuite.cli.scaling_tables import matches as matches
from benchsuite.contract.errors import UserError, nearest, refuse
from benchsuite.contract.exit_codes import ComparedKind, PlainFormat, RecordKind
from benchsuite.contract.terminal import document, echo
from benchsuite.results.export import junit as junit_xml
from benchsuite.results.export import latex as latex_tables
from benchsuite.results.export import methods as paragraph
from benchsuite.results.export import prometheus as textfile
from benchsuite.results.export import tables
from benchsuite.results.gate import baseline
from benchsuite.results.render.tables import rows
from benchsuite.results.report.io_profile import is_known, lines
from benchsuite.results.report.trace import trace
from benchsuite.results.store.frames import by_point
from benchsuite.results.store.record import Figures, TrialRecord
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore


def csv(store: Path, out: Path | None, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as CSV."""
    _write(tables.csv_text(_grouped(store, where, by, kind)), out)


def parquet(store: Path, out: Path, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as Parquet."""
    tables.write_parquet(_grouped(store, where, by, kind), out)
    _told(out)


def junit(store: Path, out: Path | None, where: Sequence[str], check: bool, kind: RecordKind) -> None:
    """Trials, or records of another kind, and what the gate finds where that is asked for, as JUnit XML."""
    if check and kind.value not in list(ComparedKind):
        raise UserError(f"--check --kind {kind.value}: allowed with --check: {', '.join(ComparedKind)}")
    trials = rows(_chosen(store, where, kind))
    _write(junit_xml.junit(trials, _checked(store, kind) if check else None), out)


def _checked(store: Path, kind: RecordKind) -> baseline.Check:
    """What the gate finds; where it has nothing to judge, that and why."""
    try:
        return baseline.check(ResultsStore(store), kind.value)
    except baseline.NothingToCheckError as error:
        return baseline.nothing(str(error))


def prometheus(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """The newest session of every point as Prometheus text."""
    text = textfile.prometheus(rows(_chosen(store, where)))
    if out is None:
        document(text.removesuffix("\n"))
    else:
        _told(textfile.write_textfile(text, out))


def latex(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """Tables of points as LaTeX."""
    _write(latex_tables.point_tables(_chosen(store, where)) + "\n", out)


def methods(store: Path, out: Path | None, where: Sequence[str], latex: bool) -> None:
    """The methods paragraph."""
    trials = rows(_chosen(store, where))
    _write((paragraph.methods_latex if latex else paragraph.methods)(trials) + "\n", out)


def _chosen(store: Path, where: Sequence[str], kind: RecordKind = RecordKind.trial) -> pd.DataFrame:
    """The records of a kind that all filters let through.

    Raises:
        UserError: a filter is wrong, or there are none.
    """
    opened = ResultsStore(store)
    found = opened.frame(kind=kind.value)
    if found.empty:
        kinds = ", ".join(RecordKind)
        raise UserError(f"store {store}: no record of kind {kind.value} to export; allowed: {kinds}")
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


def export_trace(store_path: Path, names: list[str]) -> None:
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
    if format is PlainFormat.json:
        document(json.dumps(record.io_profile, indent=1))
    else:
        echo(f"{record.trial_id} · {record.label}")
        print_profile(record)
    warn_of_damage(store)


def show_darshan(log: Path, under: Path, format: PlainFormat) -> None:
    """Print a Darshan log's POSIX counters as an I/O profile."""
    from benchsuite.storage.observe.darshan import profile_of_log

    profile = profile_of_log(log, under)
    if format is PlainFormat.json:
        document(json.dumps(profile, indent=1))
    else:
        echo(*lines(profile))
