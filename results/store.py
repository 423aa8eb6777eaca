"""ResultsStore: append-only segments, one writer each, read as one table.

STORE/segments/<sweep>-<utc>-<host>-<pid>-<rand>.jsonl holds one record per line, flushed and fsynced; raw samples lie
beside in <segment>.samples.jsonl. Nothing locks, so any number of jobs may append to one store. `compact` adds Parquet
made from them, in STORE/parquet; segments and sidecars stay, so that a writer may go on for as long as it likes.
"""

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from results.outcomes import Ended, outcomes
from results.record import Figures, Kind, TrialRecord
from results.segments import SAMPLES, SEGMENTS, Segment, Stored, StoreError, without_collector
from results.snapshot import Snapshot, compacted_records, snapshot

if TYPE_CHECKING:
    import pandas as pd

    from results.compact import Compacted

__all__ = ["SAMPLES", "ResultsStore", "StoreError"]


class ResultsStore:
    """Reads every segment of a store; appends to one of its own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._segment: Segment | None = None
        self._samples: Segment | None = None
        self.num_unreadable = 0
        """Lines that the last reading passed over: torn, damaged, or of a kind this version does not know."""

    def exists(self) -> bool:
        """Whether anything was ever stored here.

        Raises:
            StoreError: this user may not look.
        """
        try:
            return (self.path / SEGMENTS).is_dir()
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot be read: {error.strerror}") from error

    def check_writable(self) -> None:
        """Make the store's folder and a probe file in it.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            folder = self.path / SEGMENTS
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{secrets.token_hex(4)}"
            try:
                probe.write_bytes(b"x")
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot be written: {error.strerror}") from error

    def append(self, record: TrialRecord, samples: dict[str, Any] | None = None) -> TrialRecord:
        """Append a record (its raw samples first), flushed to disk; returns it as stored.

        Raises:
            StoreError: the disk is full or the store cannot be written. Earlier records are untouched.
        """
        try:
            if self._segment is None or self._samples is None:
                name = self._segment_name(record.sweep)
                self._segment = Segment(self.path / SEGMENTS / f"{name}.jsonl")
                self._samples = Segment(self.path / SEGMENTS / f"{name}{SAMPLES}")
            if samples is not None:
                record = record.model_copy(update={"samples_file": self._samples.path.name})
                self._samples.append(json.dumps({"record_id": record.record_id, **samples}))
            self._segment.append(record.model_dump_json())
        except OSError as error:
            self._segment = self._samples = None
            raise StoreError(f"store {self.path}: cannot append: {error.strerror}") from error
        return record

    @staticmethod
    def _segment_name(sweep: str) -> str:
        utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", sweep)
        return f"{safe}-{utc}-{host}-{os.getpid()}-{secrets.token_hex(3)}"

    def _snapshot(self) -> Snapshot:
        if not self.exists():
            raise StoreError(f"store {self.path}: no results there; name one with --store or BENCHSUITE_STORE")
        found = snapshot(self.path)
        self.num_unreadable = found.num_unreadable
        return found

    def records(self) -> list[TrialRecord]:
        """Every record once, oldest first.

        Raises:
            StoreError: no such store, or one that cannot be read.
        """
        now = self._snapshot()
        compacted = (stored for stored in compacted_records(now) if isinstance(stored, Stored))
        with without_collector():
            everything = [(stored.place, stored.record) for stored in chain(compacted, now.tail)]
        found: dict[str, TrialRecord] = {}
        for _, record in sorted(everything, key=itemgetter(0)):
            found.setdefault(record.record_id, record)
        return sorted(found.values(), key=lambda record: record.finished_at)

    def latest(self) -> list[TrialRecord]:
        """The last record of each trial, in the order in which trials were first seen."""
        trials: dict[str, TrialRecord] = {}
        for record in self.records():
            trials[record.trial_id] = record
        return list(trials.values())

    def outcomes(self) -> dict[str, Ended]:
        """How the last attempt at each trial ended, by trial; for stores with many records, which it keeps none of.

        Raises:
            StoreError: it cannot be read.
        """
        return outcomes(self.path) if self.exists() else {}

    def samples(self, record: TrialRecord) -> dict[str, Any] | None:
        """The raw samples of a record, or None where it has none."""
        if record.samples_file is None:
            return None
        path = self.path / SEGMENTS / Path(record.samples_file).name
        if not path.is_file():
            return None
        wanted = json.dumps(record.record_id)[1:-1].encode()
        with path.open("rb") as file:
            for line in file:
                if wanted in line and (found := _samples_of(line, record.record_id)):
                    return found
        return None

    def frame(
        self,
        by: Literal["trial", "point"] = "trial",
        where: Callable[[TrialRecord], bool] | str | None = None,
        kind: Kind = "trial",
        columns: Sequence[str] | None = None,
    ) -> "pd.DataFrame":
        """One row per trial (its last attempt), or per point and session with the median and range over repeats.

        Records of other kinds (probes, checkpoints) are rows of frames of their own.

        Args:
            by: trial or point.
            where: which trials: a condition in SQL over the columns, such as `"spec.workload" = 'bert'`, or a function
                of the record. A function needs every record read from its JSON: slow where there are many.
            kind: which records.
            columns: which columns, in this order; only these are read (by trial). Default: all.

        Raises:
            StoreError: no such store, grouping or column; or the condition is not valid.
        """
        from results.frames import by_point
        from results.query import opened

        if by not in ("trial", "point"):
            raise StoreError(f"frame: by {by!r} is unknown; allowed: trial, point")
        if callable(where):
            trials = self._frame_of(where, kind)
        else:
            chosen = columns if by == "trial" else None
            trials = opened(self._snapshot(), kind).frame(chosen, where)
        found = trials if by == "trial" else by_point(trials, list(Figures.model_fields))
        return found if columns is None else _chosen(found, columns)

    def _frame_of(self, where: Callable[[TrialRecord], bool], kind: Kind) -> "pd.DataFrame":
        from results.frames import trial_frame

        return trial_frame([record for record in self.latest() if record.kind == kind and where(record)])

    def sql(self, query: str) -> "pd.DataFrame":
        """Run DuckDB over the same rows, as a table named `trials`.

        Raises:
            StoreError: the query is not valid.
        """
        from results.query import opened

        return opened(self._snapshot(), "trial").sql(query)

    def columns(self) -> list[dict[str, str]]:
        """What columns a query of `sql` can name: each with its type, and what it means where that is known."""
        from results.query import opened

        return opened(self._snapshot(), "trial").described()

    def compact(self) -> "Compacted":
        """Turn what was appended since the last time into Parquet, beside its segments; others may go on appending.

        Raises:
            StoreError: no such store, or one that cannot be read or written.
        """
        from results.compact import compact

        if not self.exists():
            raise StoreError(f"store {self.path}: no results there; name one with --store or BENCHSUITE_STORE")
        return compact(self.path)


def _samples_of(line: bytes, record_id: str) -> dict[str, Any] | None:
    """The raw samples that a line holds, where it is whole and this record's."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("record_id") == record_id else None


def _chosen(frame: "pd.DataFrame", columns: Sequence[str]) -> "pd.DataFrame":
    from results.query import allowed

    for name in columns:
        if name not in frame:
            raise StoreError(f"frame: column {name!r} is unknown; {allowed(name, [*map(str, frame.columns)])}")
    return frame[list(columns)]
