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
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic_core import from_json

from benchsuite.results.store import shapes
from benchsuite.results.store.manifest import DamagedPartsError
from benchsuite.results.store.outcomes import Ended, outcomes
from benchsuite.results.store.place import (
    SEGMENTS,
    StoreError,
    StoreVanished,
    check_same,
    check_writable,
    is_same,
    is_settled,
    settle,
    share_open,
)
from benchsuite.results.store.record import FORMER_PARTS, Kind, Record, TrialRecord
from benchsuite.results.store.segments import (
    GONE,
    SAMPLES,
    Passed,
    Segment,
    Stored,
    lines,
    unreadable,
    without_collector,
)
from benchsuite.results.store.snapshot import Snapshot, compacted_records, snapshot

if TYPE_CHECKING:
    import pandas as pd

    from benchsuite.results.store.compaction import Compacted
    from benchsuite.results.store.query import Limits

T = TypeVar("T")
R = TypeVar("R", bound=Record)
MAX_TRIES = 5
"""How often an append to a store that is being removed is tried."""
__all__ = ["SAMPLES", "ResultsStore", "StoreError", "StoreVanished"]


class ResultsStore:
    """Reads every segment of a store; appends to one of its own.

    With a session, `records`, `latest` and `frame` give its trials alone, and all records of other kinds.
    """

    def __init__(self, path: str | Path, session: str | None = None) -> None:
        self.path = Path(path)
        self.session = session
        self.writer = socket.gethostname()
        """Whose name its segments have."""
        self._segment: Segment | None = None
        self._samples: Segment | None = None
        self.passed: Sequence[Passed] = ()
        """Lines that the last reading passed over: torn, damaged, or of a kind or schema this version does not know."""
        self.damage: str | None = None
        """Why the last reading left the Parquet parts aside and read segments alone; None where it did not."""
        self._now: Snapshot | None = None
        """What all questions are answered from; None: each reads the store anew."""
        self._frames: dict[tuple[Kind, str | None], pd.DataFrame] = {}
        """Whole frames that such questions have made, by kind and session."""
        self.on_vanished: Callable[[Path], None] = lambda gone: None
        """Told that a file that it writes was removed; what was being written is in a new one by then."""

    def still(self) -> "ResultsStore":
        """The store as it is now, for several questions: it is read once, and what is appended later is not in it.

        Raises:
            StoreError: no such store, or one that cannot be read.
        """
        found = ResultsStore(self.path, self.session)
        found._now = found._read(lambda now: now)
        return found

    def exists(self) -> bool:
        """Whether anything was ever stored here.

        Raises:
            StoreVanished: this process has written to it, and it is gone.
            StoreError: this user may not look.
        """
        check_same(self.path)
        try:
            return (self.path / SEGMENTS).is_dir()
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot be read: {error.strerror}") from error

    def check_writable(self) -> None:
        """Find or make the store, and see that it can be written (`place.check_writable`)."""
        check_writable(self.path)

    def append(self, record: R, samples: dict[str, Any] | None = None) -> R:
        """Append a record (its raw samples first), flushed to disk; returns it as stored.

        Raises:
            StoreVanished: the store is gone, or another is in its place; the record is kept elsewhere.
            StoreError: the disk is full or the store cannot be written. Earlier records are untouched.
        """
        gone: Path | None = None
        try:
            if not is_settled(self.path):
                settle(self.path)
            check_same(self.path)
            for _ in range(MAX_TRIES):
                stored, found = self._append(record, samples)
                if found is None:
                    if gone is not None:
                        self.on_vanished(gone)
                    return stored
                check_same(self.path)
                gone = gone or found
        except OSError as error:
            self._segment = self._samples = None
            if not is_same(self.path):
                return self.append(record, samples)  # which tells why
            raise StoreError(f"store {self.path}: cannot append: {error.strerror}") from error
        except StoreVanished as error:
            self._segment = self._samples = None
            raise error.with_kept(self._kept(record, samples)) from error
        raise StoreError(f"store {self.path}: cannot append: removed while it is written, {MAX_TRIES} times")

    def _kept(self, record: R, samples: dict[str, Any] | None) -> str:
        """Keep a record in a store of its own, in the temporary folder; words that say where."""
        try:
            elsewhere = ResultsStore(tempfile.mkdtemp(prefix="benchsuite-kept-"))
            elsewhere.append(record, samples)
        except (OSError, StoreError) as error:
            return f"its last record is lost: {error}"
        assert elsewhere._segment is not None
        add = f"cp {elsewhere.path / SEGMENTS}/* {self.path / SEGMENTS}"
        return f"its last record is kept in {elsewhere._segment.path} (to add it: {add})"

    def _append(self, record: R, samples: dict[str, Any] | None) -> tuple[R, Path | None]:
        """The record as it was written, and what was gone by then: its samples and it are to be written anew."""
        if self._segment is None or self._samples is None:
            name, folder = self._segment_name(record.sweep), self.path / SEGMENTS
            made = partial(share_open, store=self.path)
            self._segment = Segment(folder / f"{name}.jsonl", made)
            self._samples = Segment(folder / f"{name}{SAMPLES}", made)
        files = {file: file.num_bytes for file in (self._segment, self._samples)}
        try:
            if samples is not None:
                record = record.model_copy(update={"samples_file": self._samples.path.name})
                self._samples.append(json.dumps({"record_id": record.record_id, **samples}))
            self._segment.append(record.json_line())
            gone = next((file.path for file in files if file.is_gone()), None)
        except OSError as error:
            if error.errno not in GONE:
                raise
            gone = self._segment.path
        if gone is not None:
            for file, num_bytes in files.items():
                file.end_at(num_bytes)
            self._segment = self._samples = None
        return record, gone

    def _segment_name(self, sweep: str) -> str:
        utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        host = re.sub(r"[^A-Za-z0-9_.]", "_", self.writer)
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", sweep)
        return f"{safe}-{utc}-{host}-{os.getpid()}-{secrets.token_hex(3)}"

    def _read(self, what: Callable[[Snapshot], T]) -> T:
        """What is read of the store as it is now; where Parquet parts turn out to be damaged, of its segments alone."""
        if not self.exists():
            raise StoreError(f"store {self.path}: no results there; name one with --store or BENCHSUITE_STORE")
        now = self._now or snapshot(self.path)
        try:
            found = what(now)
        except DamagedPartsError as error:
            now = snapshot(self.path, str(error))
            self._now = self._now and now
            found = what(now)
        self.passed, self.damage = now.passed, now.damage
        return found

    def records(self) -> list[Record]:
        """Every record once, oldest first.

        Raises:
            StoreError: no such store, or one that cannot be read.
        """
        found = self._read(_records)
        return found if self.session is None else [record for record in found if self._is_meant(record)]

    def _is_meant(self, record: Record) -> bool:
        return record.kind != "trial" or record.session == self.session

    def latest(self) -> list[Record]:
        """Return the last record of each trial, probe, ..., in the order in which they were first seen."""
        return list({record.trial_id: record for record in self.records()}.values())

    def trials(self) -> list[TrialRecord]:
        """Return the last record of each trial and watched loop, in the order in which they were first seen."""
        return [one for one in self.latest() if isinstance(one, TrialRecord) and one.kind == "trial"]

    def outcomes(self) -> dict[str, Ended]:
        """How the last attempt at each trial ended, by trial; for stores with many records, which it keeps none of.

        Raises:
            StoreError: it cannot be read.
        """
        if not self.exists():
            return {}
        found, self.passed, self.damage = outcomes(self.path)
        return found

    def samples(self, record: Record) -> dict[str, Any] | None:
        """The raw samples of a record, or None where it has none, or none that this user may read."""
        if record.samples_file is None:
            return None
        path = self.path / SEGMENTS / Path(record.samples_file).name
        if not _is_file(path):
            return None
        wanted = json.dumps(record.record_id)[1:-1].encode()
        try:
            for line in lines(path):
                if wanted in line and (found := _samples_of(line, record.record_id)):
                    return found if record.schema_version > 1 else _with_parts_renamed(found)
        except PermissionError:
            unreadable(path)
        return None

    def steps(self, record: Record) -> dict[str, Any] | None:
        """The raw samples of a trial's steps, of each rank; None where it has none, or what stands there is no such."""
        found = self.samples(record)
        return found if found is not None and shapes.are_steps(found) else None

    def frame(
        self,
        by: Literal["trial", "point"] = "trial",
        where: str | None = None,
        kind: Kind = "trial",
        columns: Sequence[str] | None = None,
    ) -> "pd.DataFrame":
        """One row per trial (its last attempt), or per point and session with the median and range over repeats.

        Records of other kinds (probes, checkpoints) are rows of frames of their own.

        Args:
            by: trial or point.
            where: which trials: a condition in SQL over the columns, such as `"spec.workload" = 'bert'`.
            kind: which records.
            columns: which columns, in this order; only these are read (by trial). Default: all.

        Raises:
            StoreError: no such store, grouping or column; or the condition is not valid.
        """
        from benchsuite.results.store.columns import frame_of_tail
        from benchsuite.results.store.frames import by_point

        if by not in ("trial", "point"):
            raise StoreError(f"frame: by {by!r} is unknown; allowed: trial, point")
        chosen = columns if by == "trial" else None
        session = self.session if kind == "trial" else None

        def read(now: Snapshot) -> "pd.DataFrame":
            if not now.manifest.parts and where is None:  # all is in memory already
                return frame_of_tail(now.tail, kind, chosen, session)
            from benchsuite.results.store.query import opened

            return opened(now, kind).frame(chosen, where, session)

        if self._now is None or chosen is not None or where is not None:
            trials = self._read(read)
        else:
            if (kind, session) not in self._frames:
                self._frames[kind, session] = self._read(read)
            trials = self._frames[kind, session].copy(deep=False)
        found = trials if by == "trial" else by_point(trials)
        return found if columns is None else _chosen(found, columns)

    def sql(self, query: str, limits: "Limits | None" = None) -> "pd.DataFrame":
        """Run DuckDB over the same rows, as a table named `trials`.

        Raises:
            StoreError: the query is not valid, or takes more than its limits (default: none).
        """
        from benchsuite.results.store.query import opened

        return self._read(lambda now: opened(now, "trial", limits).sql(query, limits))

    def columns(self) -> list[dict[str, str]]:
        """What columns a query of `sql` can name: each with its type, and what it means where that is known."""
        from benchsuite.results.store.query import opened

        return self._read(lambda now: opened(now, "trial").described())

    def compact(self, unfinished: Path | None = None, spill: Path | None = None) -> "Compacted":
        """Turn what was appended since the last time into Parquet, beside its segments; others may go on appending.

        Args:
            unfinished: a folder of its file system, made for files until they are whole; default: one beside those.
            spill: an empty folder for what does not fit into memory; default: a temporary one.

        Raises:
            StoreError: no such store, or one that cannot be read or written.
        """
        from benchsuite.results.store.compaction import compact

        if not self.exists():
            raise StoreError(f"store {self.path}: no results there; name one with --store or BENCHSUITE_STORE")
        done, self.passed = compact(self.path, unfinished, spill)
        return done


def _records(now: Snapshot) -> list[Record]:
    compacted = (found for found in compacted_records(now.store, now.manifest.parts) if isinstance(found, Stored))
    with without_collector():
        everything = [(stored.place, stored.record) for stored in chain(compacted, now.tail)]
    found: dict[str, Record] = {}
    for _, record in sorted(everything, key=itemgetter(0)):
        found.setdefault(record.record_id, record)
    return sorted(found.values(), key=lambda record: record.finished_at)


def _is_file(path: Path) -> bool:
    """Whether it is there and a file; not so of what is no name of one."""
    try:
        return path.is_file()
    except OSError:
        return False


def _samples_of(line: bytes, record_id: str) -> dict[str, Any] | None:
    """The raw samples that a line holds, where it is whole and this record's."""
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("record_id") == record_id else None


def _with_parts_renamed(samples: Any) -> Any:
    """Raw samples of version 1 with what their parts of a step are called since."""
    if isinstance(samples, list):
        return [_with_parts_renamed(item) for item in samples] if samples and isinstance(samples[0], dict) else samples
    if not isinstance(samples, dict):
        return samples
    return {FORMER_PARTS.get(name, name): _with_parts_renamed(value) for name, value in samples.items()}


def _chosen(frame: "pd.DataFrame", columns: Sequence[str]) -> "pd.DataFrame":
    from benchsuite.results.store.columns import check_columns

    check_columns(columns, [*map(str, frame.columns)])
    return frame[list(columns)]
