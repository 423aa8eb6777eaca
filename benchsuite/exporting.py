"""Traces and profiles: written to files, printed."""

import json
from pathlib import Path
from typing import Any

from benchsuite.damage import warn_of_damage
from benchsuite.errors import UserError, nearest
from benchsuite.options import PlainFormat
from benchsuite.terminal import document, echo
from results.export.trace import trace
from results.record import TrialRecord
from results.replacing import write_whole
from results.report.ioprofile import is_known, lines
from results.store import ResultsStore


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
    from storage.darshan import profile_of_log

    profile = profile_of_log(log, under)
    if format is PlainFormat.json:
        document(json.dumps(profile, indent=1))
    else:
        echo(*lines(profile))
