"""ResultsStore: append-only segments, one writer each, read as one table.

STORE/segments/<sweep>-<utc>-<host>-<pid>-<rand>.jsonl holds one record per line, flushed and fsynced; raw samples lie
beside in <segment>.samples.jsonl. Nothing locks, so any number of jobs may append to one store.
"""

import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from pydantic import ValidationError

from results.record import Figures, Kind, TrialRecord

if TYPE_CHECKING:
    import pandas as pd


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SAMPLES = ".samples.jsonl"


class StoreError(ValueError):
    """Something about a store that its user can mend: said in one line."""


class _Segment:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, line: str) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            _fsync_folder(self.path.parent)
        data = line.encode() + b"\n"
        written = self._file.write(data)
        if written != len(data):
            raise OSError(28, "short write: is the disk full?")
        os.fsync(self._file.fileno())


class ResultsStore:
    """Reads every segment of a store; appends to one of its own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._segment: _Segment | None = None
        self._samples: _Segment | None = None
        self.num_unreadable = 0
        """Lines that the last reading passed over: torn, damaged, or of a kind this version does not know."""

    def exists(self) -> bool:
        """Whether anything was ever stored here.

        Raises:
            StoreError: this user may not look.
        """
        try:
            return (self.path / "segments").is_dir()
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot be read: {error.strerror}") from error

    def check_writable(self) -> None:
        """Make the store's folder and a probe file in it.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            folder = self.path / "segments"
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{secrets.token_hex(4)}"
            probe.write_bytes(b"x")
            probe.unlink()
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
                self._segment = _Segment(self.path / "segments" / f"{name}.jsonl")
                self._samples = _Segment(self.path / "segments" / f"{name}{SAMPLES}")
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

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The whole JSON objects of a segment; torn or damaged lines are passed over."""
        with path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    self.num_unreadable += 1
                    continue
                if isinstance(value, dict):
                    yield value

    def records(self) -> list[TrialRecord]:
        """Every record once, oldest first.

        Raises:
            StoreError: no such store, or one that cannot be read.
        """
        if not self.exists():
            raise StoreError(f"store {self.path}: no results there; name one with --store or BENCHSUITE_STORE")
        found: dict[str, TrialRecord] = {}
        self.num_unreadable = 0
        try:
            segments = sorted((self.path / "segments").glob("*.jsonl"))
            for path in (path for path in segments if not path.name.endswith(SAMPLES)):
                for record in self._records(path):
                    found.setdefault(record.record_id, record)
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot be read: {error.strerror}") from error
        return sorted(found.values(), key=lambda record: record.finished_at)

    def _records(self, path: Path) -> Iterator[TrialRecord]:
        for value in self._lines(path):
            try:
                yield TrialRecord.model_validate(value)
            except ValidationError:
                self.num_unreadable += 1

    def latest(self) -> list[TrialRecord]:
        """The last record of each trial, in the order in which trials were first seen."""
        trials: dict[str, TrialRecord] = {}
        for record in self.records():
            trials[record.trial_id] = record
        return list(trials.values())

    def samples(self, record: TrialRecord) -> dict[str, Any] | None:
        """The raw samples of a record, or None where it has none."""
        if record.samples_file is None:
            return None
        path = self.path / "segments" / Path(record.samples_file).name
        if not path.is_file():
            return None
        return next((line for line in self._lines(path) if line.get("record_id") == record.record_id), None)

    def frame(
        self,
        by: Literal["trial", "point"] = "trial",
        where: Callable[[TrialRecord], bool] = lambda record: True,
        kind: Kind = "trial",
    ) -> "pd.DataFrame":
        """One row per trial (its last attempt), or per point and session with the median and range over repeats.

        Records of other kinds (probes, checkpoints) are rows of frames of their own.
        """
        from results.frames import by_point, trial_frame

        trials = trial_frame([record for record in self.latest() if record.kind == kind and where(record)])
        if by not in ("trial", "point"):
            raise StoreError(f"frame: by {by!r} is unknown; allowed: trial, point")
        return trials if by == "trial" else by_point(trials, list(Figures.model_fields))

    def sql(self, query: str) -> "pd.DataFrame":
        """Run DuckDB over the same rows, as a table named `trials`.

        Raises:
            StoreError: the query is not valid.
        """
        import duckdb

        connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
        frame = self.frame()
        connection.execute(f"SET pandas_analyze_sample = {max(len(frame), 1)}")
        connection.register("trials", frame)
        try:
            found = connection.execute(query)
        except duckdb.Error as error:
            raise StoreError(f"query: {str(error).splitlines()[0]}") from error
        if found is None or found.description is None:
            raise StoreError(f"query {query!r}: nothing to run; such as: select label, au from trials")
        return found.df()
