"""Segments: append-only files of JSON lines, one writer each. Segment and offset tell a line from all others."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import ValidationError, from_json

from results.record import TrialRecord

SEGMENTS = "segments"
"""The folder of a store that holds them."""
SEGMENT, OFFSET, LINE = "_segment", "_offset", "_record"
"""Columns of Parquet parts that tell where a record came from, and its JSON."""
SAMPLES = ".samples.jsonl"
"""How the sidecar of a segment ends: raw samples, a line for each record that has some."""


class StoreError(ValueError):
    """Something about a store that its user can mend: said in one line."""


@dataclass(frozen=True)
class Stored:
    """A record as it stands in a store."""

    segment: str
    offset: int
    line: bytes
    fields: dict[str, Any]
    record: TrialRecord

    @property
    def place(self) -> tuple[str, int]:
        """Its segment and offset: no two lines share one."""
        return self.segment, self.offset


@dataclass(frozen=True)
class Passed:
    """A line that was passed over: torn, damaged, or of a kind this version does not know."""

    segment: str
    offset: int
    num_bytes: int


def fsync_path(path: Path) -> None:
    """Flush a file, or a folder's names, to storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Segment:
    """The file that a writer appends to; made by the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, line: str) -> None:
        """Append a line, flushed to storage.

        Raises:
            OSError: it cannot be, or not as a whole.
        """
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            fsync_path(self.path.parent)
        data = line.encode() + b"\n"
        written = self._file.write(data)
        if written != len(data):
            raise OSError(28, "short write: is the disk full?")
        os.fsync(self._file.fileno())


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave out the search for cycles, of which records have none: it takes half the time of reading many."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def segment_paths(store: Path) -> list[Path]:
    """Every segment of a store by name; sidecars left out."""
    return sorted(path for path in (store / SEGMENTS).glob("*.jsonl") if not path.name.endswith(SAMPLES))


def parsed(segment: str, offset: int, line: bytes) -> Stored | Passed:
    """The record of a line, or that it is none."""
    try:
        fields = from_json(line)
        record = TrialRecord.model_validate(fields)
    except (ValueError, ValidationError):
        return Passed(segment, offset, len(line))
    return Stored(segment, offset, line, fields, record)


def read(
    path: Path, start: int = 0, end: int | None = None, ended_only: bool = False
) -> Iterator[tuple[int, Stored | Passed]]:
    """What the lines of a segment say from one byte to another (default: its end), each with the byte after it.

    The last may lack its newline, unless only ended ones are asked for: then it is still being written, or torn.

    Raises:
        OSError: it cannot be read.
    """
    for line in lines(path, start, end):
        if ended_only and not line.endswith(b"\n"):
            return
        found = parsed(path.name, start, line)
        start += len(line)
        yield start, found


def lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The lines of a segment from one byte to another (default: its end).

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(start)
        while (end is None or start < end) and (line := file.readline()):
            start += len(line)
            yield line
