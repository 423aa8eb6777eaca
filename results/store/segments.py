"""Segments: append-only files of JSON lines, one writer each. Segment and offset tell a line from all others."""

import errno
import gc
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import ValidationError, from_json

from benchsuite.results.store.place import SEGMENTS
from benchsuite.results.store.record import ANY_RECORD, SCHEMA_VERSION, STORED, Record

SEGMENT, OFFSET, LINE = "_segment", "_offset", "_record"
"""Columns of Parquet parts that tell where a record came from, and its JSON."""
SAMPLES = ".samples.jsonl"
"""How the sidecar of a segment ends: raw samples, a line for each record that has some."""
MAX_RECORD_BYTES, MAX_LINE_BYTES = 1 << 26, 1 << 30
"""Far above any record, and any line of samples: what is longer, as zeros in a damaged file are, is read in pieces."""
GONE = (errno.ENOENT, errno.ESTALE)
"""Error numbers that mean: the file was removed while it is written."""

UNTOLD: dict[Path, dict[str, str]] = {}
"""By store: segments that were passed over as this user may not read them, with their owners, until the user hears."""


@dataclass(frozen=True)
class Stored:
    """A record as it stands in a store."""

    segment: str
    offset: int
    line: bytes
    record: Record

    @property
    def fields(self) -> dict[str, Any]:
        """What its line holds: more than the record, where a newer version wrote it."""
        found: dict[str, Any] = from_json(self.line)
        return found

    @property
    def place(self) -> tuple[str, int]:
        """Return the line's segment and offset: no two lines share one."""
        return self.segment, self.offset


@dataclass(frozen=True)
class Passed:
    """A line that was passed over: torn, damaged, or of a kind this version does not know."""

    segment: str
    offset: int
    num_bytes: int
    reason: str
    newer: bool = False
    """Whether it is a record of a newer schema."""
    owner: str | None = None
    """Of a whole segment that this user may not read: whose it is."""


def fsync_path(path: Path) -> None:
    """Flush a file, or a folder's names, to storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def regular_file(path: Path) -> bytes:
    """The content of a file; not of what others may have put there instead: a pipe never ends.

    Raises:
        OSError: it is missing, something else, or may not be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


class Segment:
    """The file that a writer appends to; made by the first line, and then shown to `made`."""

    def __init__(self, path: Path, made: Callable[[int], None] = lambda descriptor: None) -> None:
        self.path, self._made = path, made
        self._file: BinaryIO | None = None
        self.num_bytes = 0
        """The length of the lines that were appended."""

    def append(self, line: str) -> None:
        """Append a line, flushed to storage.

        Raises:
            OSError: it cannot be, or not as a whole.
        """
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
            self._made(self._file.fileno())
            fsync_path(self.path.parent)
        data = line.encode() + b"\n"
        written = self._file.write(data)
        if written != len(data):
            raise OSError(errno.ENOSPC, "short write: is the disk full?")
        os.fsync(self._file.fileno())
        self.num_bytes += len(data)

    def is_gone(self) -> bool:
        """Whether its path no longer names the file that was made, as where old scratch is purged."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError as error:
            if error.errno not in GONE:
                raise
            return True

    def end_at(self, num_bytes: int) -> None:
        """Take back what was appended beyond, which goes to another segment, and append no more."""
        if self._file is not None:
            with suppress(OSError):  # it may be gone
                os.ftruncate(self._file.fileno(), num_bytes)
            self._file.close()


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
    return [path for path, is_file in _named_as_segments(store) if is_file]


def no_segments(store: Path) -> list[Passed]:
    """What lies where a segment would and is no file: a folder, a pipe, a link to what is gone."""
    reason = "not a file"
    return [Passed(segment_name(path), 0, 0, reason) for path, is_file in _named_as_segments(store) if not is_file]


def unreadable(path: Path) -> Passed:
    """What is passed over of a segment that this user may not read: all of it; noted in UNTOLD."""
    uid = path.stat().st_uid
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = f"user {uid}"
    passed = Passed(segment_name(path), 0, 0, f"may not be read, it belongs to {owner}", owner=owner)
    UNTOLD.setdefault(path.parent.parent, {})[passed.segment] = owner
    return passed


def _named_as_segments(store: Path) -> list[tuple[Path, bool]]:
    """What is named as a segment, in order of names, and whether it is a file."""
    try:
        with os.scandir(store / SEGMENTS) as entries:
            found = [(entry.path, _is_file(entry)) for entry in entries if entry.name.endswith(".jsonl")]
    except FileNotFoundError:
        return []
    return [(Path(path), is_file) for path, is_file in sorted(found) if not path.endswith(SAMPLES)]


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:  # links in a circle, or to where this user may not look
        return False


def segment_name(path: Path) -> str:
    """The name of a segment as columns and manifests hold it: as UTF-8, whatever bytes the file system has."""
    name = path.name
    return name if name.isprintable() else os.fsencode(name).hex()


def parsed(segment: str, offset: int, line: bytes) -> Stored | Passed:
    """The record of a line, or that it is none, and why."""
    try:
        record = ANY_RECORD.validate_json(line, strict=True, context=STORED)
    except ValidationError as error:
        newer = _newer(line)
        return Passed(segment, offset, len(line), newer or first_problem(error), newer is not None)
    return Stored(segment, offset, line, record)


def _newer(line: bytes) -> str | None:
    """What schema a line is of that this version does not know; None of any other line."""
    try:
        fields = from_json(line)
    except ValueError:
        return None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    is_newer = type(version) is int and version > SCHEMA_VERSION
    return f"schema_version {version!r:.24}, known is {SCHEMA_VERSION}" if is_newer else None


def first_problem(error: ValidationError) -> str:
    """The first problem of a line: where it stands, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")


def read(
    path: Path, start: int = 0, end: int | None = None, ended_only: bool = False
) -> Iterator[tuple[int, Stored | Passed]]:
    """What the lines of a segment say from one byte to another (default: its end), each with the byte after it.

    The last may lack its newline, unless only ended ones are asked for: then it is still being written, or torn.

    Raises:
        OSError: it cannot be read.
    """
    name = segment_name(path)
    for line in lines(path, start, end, MAX_RECORD_BYTES):
        if ended_only and not line.endswith(b"\n"):
            return
        found = parsed(name, start, line)
        start += len(line)
        yield start, found


def lines(path: Path, start: int = 0, end: int | None = None, most: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a segment from one byte to another (default: its end); longer ones in pieces of `most` bytes.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(start)
        while (end is None or start < end) and (line := file.readline(most)):
            start += len(line)
            yield line
