"""Format `lmdb`: one memory-mapped B-tree, read by any number of threads and processes without locks.

Keys are `<row, ten digits>/<field>`, in order; values are encoded images, labels in digits, and .npy contents. The
library's lookup touches every page of a value, so all of it has come from storage by then; readers that use memory
again get the mapped pages themselves, without a copy. Read-ahead is turned off, as the library advises, where values
are small: it would fetch around each what nobody asked for, and what was read cold could not be told.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

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
from storage.sample import Allocate, Array, DatasetError, Recycled, Sample, Value, fresh

DATA = "data.mdb"
MAP_BYTES = 1 << 44
"""Address space, not memory or disk."""
COMMIT_BYTES = 1 << 28
READ_AHEAD_BYTES = 1 << 20
"""Mean size of samples from which on the kernel reads ahead."""
_opening = threading.RLock()
_open: "dict[tuple[int, int], _Environment]" = {}


def entry_key(row: int, field: str) -> bytes:
    """The LMDB key of one field of one sample; keys sort by row."""
    return f"{row:010d}/{field}".encode()


def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
    """Write `data.mdb`, committing every COMMIT_BYTES; the lock file that LMDB makes is removed."""
    import lmdb

    pending, memory = 0, Recycled()
    with lmdb.open(str(folder), map_size=MAP_BYTES, writemap=False, sync=False, metasync=False) as environment:
        transaction = environment.begin(write=True)
        for row, sample in enumerate(samples):
            for name, value in sorted(_values(sample, memory)):
                transaction.put(entry_key(row, name), value, append=True)
            pending += sample.stored_bytes
            if pending >= COMMIT_BYTES:
                transaction.commit()
                transaction, pending = environment.begin(write=True), 0
            yield index_row(sample, DATA)
        transaction.commit()
    (folder / "lock.mdb").unlink(missing_ok=True)


def _values(sample: Sample, allocate: Allocate) -> list[tuple[str, bytes | memoryview]]:
    if "image" not in sample.fields:
        return [("npy", b"".join(npy.parts(record(sample))))]
    return [
        (name, _joined(name, value, allocate) if isinstance(value, np.ndarray) else value)
        for name, value in sample.fields.items()
    ]


def _joined(name: str, value: Array, allocate: Allocate) -> memoryview:
    """A .npy file's content in one piece of memory, which is used again."""
    header, content = npy.parts(value)
    size = len(header) + content.nbytes
    joined = allocate(name, size)[:size]
    joined[: len(header)] = np.frombuffer(header, np.uint8)
    joined[len(header) :] = np.frombuffer(content, np.uint8)
    return joined.data


class _Environment:
    """An LMDB file opened for reading, once per process: the library refuses a second time, also in forked children."""

    def __init__(self, path: Path, readahead: bool) -> None:
        import lmdb

        try:
            self.map = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=readahead, create=False)
        except lmdb.Error as error:
            raise DatasetError(f"{path}: not an LMDB file: {error}") from error
        needed = (self.map.info()["last_pgno"] + 1) * self.map.stat()["psize"]
        if path.stat().st_size < needed:
            self.map.close()
            raise DatasetError(f"{path}: {path.stat().st_size} bytes, its tree needs {needed}: truncated")
        self.users = 0


@contextmanager
def environment(path: Path, readahead: bool = False) -> Iterator[_Environment]:
    """The process's one opening of an LMDB file; the last of its users closes it."""
    facts = path.stat()
    identity = (facts.st_dev, facts.st_ino)
    with _opening:
        opened = _open[identity] = _open.get(identity) or _Environment(path, readahead)
        opened.users += 1
    try:
        yield opened
    finally:
        with _opening:
            opened.users -= 1
            if not opened.users:
                _open.pop(identity).map.close()


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: views of the mapped file, or copies where the lane wants new memory for each."""
    import lmdb

    path, kind = data_file(dataset, DATA), dataset.manifest.kind
    copied = lane.allocate is fresh
    with environment(path, _reads_ahead(dataset)) as opened:
        for row in map(int, dealt(len(dataset.index), lane)):
            key = text(dataset.index["key"][row])
            with opened.map.begin(buffers=True) as transaction:
                try:
                    fields = _fields(transaction, kind, row, copied)
                except (lmdb.Error, KeyError, ValueError) as error:
                    reason = error.args[0] if error.args else error
                    raise DatasetError(f"{path}: sample {key!r}: {reason}") from error
                yield Sample(key, fields, row, str(path))


def _reads_ahead(dataset: Dataset) -> bool:
    mean_bytes = dataset.manifest.stored_bytes // dataset.manifest.num_samples
    return mean_bytes >= READ_AHEAD_BYTES


def _fields(transaction: Any, kind: str, row: int, copied: bool) -> dict[str, Value]:
    if kind in RECORD_KINDS:
        return dict(unpack(npy.view(_value(transaction, row, "npy", copied), "npy"), KIND_FIELDS[kind]))
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        content = _value(transaction, row, name, copied)
        fields[name] = npy.view(content, name) if kind == "volume" else content
    return fields


def _value(transaction: Any, row: int, name: str, copied: bool) -> bytes | memoryview:
    value: memoryview | None = transaction.get(entry_key(row, name))
    if value is None:
        raise KeyError(f"no entry {entry_key(row, name).decode()}")
    return bytes(value) if copied else value


LMDB = Format(
    "lmdb",
    frozenset(KIND_FIELDS),
    write,
    read,
    by_sample_problem,
    by_sample_smallest_lane,
    file_per_sample=False,
    sequential=False,
    sample_overhead_bytes=4096,
)
