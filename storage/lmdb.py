"""Format `lmdb`: one memory-mapped B-tree, read by any number of threads and processes without locks.

Keys are `<row, ten digits>/<field>`, in order; values are encoded images, labels in digits, and .npy contents. The
library finds a value; its bytes are then read from the file at the value's place, into the caller's memory: page faults
one by one are several times slower on a cold disk, and read-ahead around each fetches what nobody asked for.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from storage import npy
from storage.fields import KIND_FIELDS, RECORD_KINDS, record, unpack
from storage.format import (
    Dataset,
    Format,
    IndexRow,
    Lane,
    by_sample_problem,
    by_sample_smallest_lane,
    data_file,
    dealt,
    index_row,
    text,
)
from storage.sample import Allocate, DatasetError, Sample, Value, read_at

DATA = "data.mdb"
MAP_BYTES = 1 << 44
"""Address space, not memory or disk."""
COMMIT_BYTES = 1 << 28
_open: "WeakValueDictionary[tuple[int, int], _Environment]" = WeakValueDictionary()


def entry_key(row: int, field: str) -> bytes:
    """The LMDB key of one field of one sample; keys sort by row."""
    return f"{row:010d}/{field}".encode()


def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
    """Write `data.mdb`, committing every COMMIT_BYTES; the lock file that LMDB makes is removed."""
    import lmdb

    pending = 0
    with lmdb.open(str(folder), map_size=MAP_BYTES, writemap=False, sync=False, metasync=False) as environment:
        transaction = environment.begin(write=True)
        for row, sample in enumerate(samples):
            for name, value in sorted(_values(sample)):
                transaction.put(entry_key(row, name), value, append=True)
            pending += sample.stored_bytes
            if pending >= COMMIT_BYTES:
                transaction.commit()
                transaction, pending = environment.begin(write=True), 0
            yield index_row(sample, DATA)
        transaction.commit()
    (folder / "lock.mdb").unlink(missing_ok=True)


def _values(sample: Sample) -> list[tuple[str, bytes | memoryview]]:
    if "image" not in sample.fields:
        return [("npy", npy.dumps(record(sample)))]
    return [
        (name, npy.dumps(value) if isinstance(value, np.ndarray) else value) for name, value in sample.fields.items()
    ]


class _Environment:
    """An LMDB file opened for reading, once per process: the library refuses a second time, also in forked children."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self.path = path
        self.descriptor = -1
        try:
            self.map = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False, create=False)
        except lmdb.Error as error:
            raise DatasetError(f"{path}: not an LMDB file: {error}") from error
        needed = (self.map.info()["last_pgno"] + 1) * self.map.stat()["psize"]
        if path.stat().st_size < needed:
            self.map.close()
            raise DatasetError(f"{path}: {path.stat().st_size} bytes, its tree needs {needed}: truncated")
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._mapped_at: tuple[int, int] | None = None

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def place(self, value: memoryview) -> int | None:
        """Where a value lies in the file; None where that cannot be told."""
        address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
        if self._mapped_at is None or not self._mapped_at[0] <= address < self._mapped_at[1]:
            self._mapped_at = _mapping(address)
        if self._mapped_at is None:
            return None
        return int(address - self._mapped_at[0])


def _mapping(address: int) -> tuple[int, int] | None:
    """Start and end of the file mapping that holds an address, where it maps a file from its first byte."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, *_ = line.split()
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            return (int(start, 16), int(end, 16)) if int(offset, 16) == 0 else None
    return None


def environment(path: Path) -> _Environment:
    """The process's one opening of an LMDB file."""
    facts = path.stat()
    identity = (facts.st_dev, facts.st_ino)
    found = _open.get(identity)
    if found is None:
        found = _open[identity] = _Environment(path)
    return found


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: keys are looked up in the tree, values read from the file."""
    import lmdb

    opened = environment(data_file(dataset, DATA))
    where, kind = str(opened.path), dataset.manifest.kind
    for row in map(int, dealt(len(dataset.index), lane)):
        key = text(dataset.index["key"][row])
        try:
            with opened.map.begin(buffers=True) as transaction:
                fields = _fields(opened, transaction, kind, row, lane.allocate)
        except (lmdb.Error, KeyError, ValueError) as error:
            reason = str(error.args[0] if error.args else error)
            prefix = "" if reason.startswith(where) else f"{where}: sample {key!r}: "
            raise DatasetError(f"{prefix}{reason}") from error
        yield Sample(key, fields, row, where)


def _fields(opened: _Environment, transaction: Any, kind: str, row: int, allocate: Allocate) -> dict[str, Value]:
    if kind in RECORD_KINDS:
        content = _read_value(opened, transaction, row, "npy", allocate)
        return dict(unpack(npy.view(content, "npy"), KIND_FIELDS[kind]))
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        content = _read_value(opened, transaction, row, name, allocate)
        fields[name] = npy.view(content, name) if kind == "volume" else content.data
    return fields


def _read_value(
    opened: _Environment, transaction: Any, row: int, name: str, allocate: Allocate
) -> npt.NDArray[np.uint8]:
    value = transaction.get(entry_key(row, name))
    if value is None:
        raise KeyError(f"no entry {entry_key(row, name).decode()}")
    content = allocate(name, len(value))[: len(value)]
    place = opened.place(value) if len(value) else None
    if place is None:
        content[:] = np.frombuffer(value, np.uint8)
        return content
    return read_at(opened.descriptor, place, content, opened.path)


LMDB = Format(
    "lmdb",
    frozenset(KIND_FIELDS),
    write,
    read,
    by_sample_problem,
    by_sample_smallest_lane,
    file_per_sample=False,
    sequential=False,
)
