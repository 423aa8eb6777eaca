"""Format `lmdb`: one memory-mapped B-tree, read by any number of threads and processes without locks.

Keys are `<row, ten digits>/<field>`, in order; values are encoded images, labels in digits, and .npy contents. The
library's lookup touches every page of a value, so all of it has come from storage by then; readers copy it from there.
Read-ahead is turned off, as the library advises, where values
are small: it would fetch around each what nobody asked for, and what was read cold could not be told. Instead
`data.mdb.idx` says where each value lies, and the kernel is asked for exactly that, a sample ahead of its use.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, record, unpack
from benchsuite.storage.dataset.manifest import (
    Dataset,
    Format,
    IndexRow,
    ReaderShare,
    StockReader,
    data_file,
    dealt,
    index_row,
    text,
)
from benchsuite.storage.dataset.sample import Allocate, Array, Recycled, Sample, Value, copied
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.write_behind import WriteBehind

DATA = "data.mdb"
MAP_BYTES = 1 << 44
"""Address space, not memory or disk."""
COMMIT_BYTES = 1 << 26
BLOCK_BYTES = 1 << 22
PLACES = f"{DATA}.idx"
"""The file beside the data: two int64 a row, offset and length of the pages that its image or record fills in DATA."""
PAGE = 4096
READ_AHEAD_BYTES = 1 << 20
"""Mean size of samples from which on the kernel reads ahead."""
_opening = threading.RLock()
_open: "dict[tuple[int, int], _Environment]" = {}


def entry_key(row: int, field: str) -> bytes:
    """The LMDB key of one field of one sample; keys sort by row."""
    return f"{row:010d}/{field}".encode()


def write(folder: Path, samples: Iterable[Sample], digests: dict[str, str] | None = None) -> Iterator[IndexRow]:
    """Write `data.mdb`, committing every COMMIT_BYTES; LMDB's lock file is removed.

    `data.mdb.idx` follows for samples that the kernel shall not read ahead. A transaction that reads the empty tree
    stays open meanwhile: LMDB then uses no page twice, and what is committed has its final place and content.
    """
    import lmdb

    pending, total, count, memory = 0, 0, 0, Recycled()
    environment = lmdb.open(os.fsencode(folder), map_size=MAP_BYTES, writemap=False, sync=False, metasync=False)
    with (folder / DATA).open("rb", buffering=0) as file:
        with environment, environment.begin(), WriteBehind() as behind:
            committed = _Committed(environment, file, behind)
            transaction = environment.begin(write=True)
            for count, sample in enumerate(samples, 1):
                for name, value in sorted(_values(sample, memory)):
                    transaction.put(entry_key(count - 1, name), value, append=True)
                pending, total = pending + sample.stored_bytes, total + sample.stored_bytes
                if pending >= COMMIT_BYTES:
                    transaction.commit()
                    committed.follow(count, total)
                    transaction, pending = environment.begin(write=True), 0
                yield index_row(sample, DATA)
            transaction.commit()
            committed.follow(count, total)
            if total < count * READ_AHEAD_BYTES:
                committed.places().tofile(folder / PLACES)
        if digests is not None:
            digests[DATA] = committed.digest()
    (folder / "lock.mdb").unlink(missing_ok=True)


class _Committed:
    """Follows a growing LMDB file: digests what was added, notes where small values lie, and has it leave the cache.

    Pages that are mapped to look at a value stay in the page cache, whatever is asked.
    """

    def __init__(self, environment: Any, file: FileIO, behind: WriteBehind) -> None:
        self._places: list[npt.NDArray[np.int64]] = []
        self._environment, self._file, self._behind = environment, file, behind
        self._rows, self._digest, self._block = 0, blake3(max_threads=blake3.AUTO), bytearray(BLOCK_BYTES)
        self._end = self._head = 2 * environment.stat()["psize"]
        """The end of the two pages that say which tree is valid, written anew by each commit."""

    def follow(self, rows: int, num_bytes: int) -> None:
        """Note how many rows and bytes of samples have been committed."""
        if num_bytes < rows * READ_AHEAD_BYTES:
            self._places.append(_places(self._environment, self._rows, rows))
            self._rows = rows
        start = self._end
        self._end = self._digested(start, os.fstat(self._file.fileno()).st_size)
        self._behind.written(self._file.fileno(), start, self._end)

    def places(self) -> npt.NDArray[np.int64]:
        """Return where the content of each row lies."""
        return np.concatenate(self._places)

    def digest(self) -> str:
        """Return the digest of the closed file, as `file_digest` gives it."""
        self._digested(self._end, os.fstat(self._file.fileno()).st_size)
        self._digested(0, self._head)
        return f"blake3-from-{self._head}:{self._digest.hexdigest(16)}"

    def _digested(self, start: int, end: int) -> int:
        view = memoryview(self._block)
        while start < end:
            got = os.preadv(self._file.fileno(), [view[: min(len(view), end - start)]], start)
            if not got:
                raise DatasetError(f"{DATA}: it shrank while it was written")
            self._digest.update(view[:got])
            start += got
        return start


def _places(environment: Any, first_row: int, end_row: int) -> npt.NDArray[np.int64]:
    """Offset and length, in the file, of the pages of rows' images or records; (0, 0) where one shares a page."""
    places = np.zeros((end_row - first_row, 2), "<i8")
    with environment.begin(buffers=True) as transaction:
        base, cursor = None, transaction.cursor()
        for key, value in cursor if cursor.set_range(entry_key(first_row, "")) else ():
            row, _, name = bytes(key).partition(b"/")
            if name not in (b"image", b"npy") or len(value) < PAGE:
                continue
            address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
            base = _mapped_at(address) if base is None else base
            first, end = (address - base) // PAGE, -(-(address - base + len(value)) // PAGE)
            places[int(row) - first_row] = first * PAGE, (end - first) * PAGE
    return places


def _mapped_at(address: int) -> int:
    """Where the mapping of a file's beginning that holds an address begins."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        start, end = (int(bound, 16) for bound in line.partition(" ")[0].split("-"))
        if start <= address < end:
            return start - int(line.split()[2], 16)
    raise AssertionError(f"no mapping holds {address:#x}")


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


def check_whole(path: Path, environment: Any) -> None:
    """Refuse a file that ends before its tree does: reading there would end the process.

    Raises:
        DatasetError: so it is; the environment is closed.
    """
    needed, found = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"], path.stat().st_size
    if found < needed:
        environment.close()
        raise DatasetError(f"{path}: {found} bytes, its tree needs {needed}: truncated")


class _Environment:
    """An LMDB file opened for reading, once per process: the library refuses a second time, also in forked children."""

    def __init__(self, path: Path, readahead: bool) -> None:
        import lmdb

        try:
            self.map = lmdb.open(
                os.fsencode(path), subdir=False, readonly=True, lock=False, readahead=readahead, create=False
            )
        except lmdb.Error as error:
            raise DatasetError(f"{path}: not an LMDB file: {error}") from error
        check_whole(path, self.map)
        self.users, self._file = 0, path.open("rb", buffering=0)

    def fetch(self, offset: int, num_bytes: int) -> None:
        """Have the kernel read a part of the file, without waiting for it."""
        os.posix_fadvise(self._file.fileno(), offset, num_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Unmap and close the file."""
        self.map.close()
        self._file.close()


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
                _open.pop(identity).close()


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples, copied out of the mapped file into the lane's memory."""
    import lmdb

    path, kind = data_file(dataset, DATA), dataset.manifest.kind
    ahead = _reads_ahead(dataset)
    places = None if ahead else read_places(dataset)
    with environment(path, ahead) as opened:
        rows = dealt(len(dataset.index), lane).tolist()
        for number, row in enumerate(rows):
            for soon in rows[number : number + 2] if not number else rows[number + 1 : number + 2]:
                _fetch(opened, places, dataset, soon)
            key = text(dataset.index["key"][row])
            with opened.map.begin(buffers=True) as transaction:
                try:
                    fields = _fields(transaction, kind, row, lane.allocate)
                except (lmdb.Error, KeyError, ValueError) as error:
                    reason = error.args[0] if error.args else error
                    raise DatasetError(f"{path}: sample {key!r}: {reason}") from error
                yield Sample(key, fields, row, str(path))


def read_places(dataset: Dataset) -> npt.NDArray[np.int64] | None:
    """Where the rows' pages lie; None for a dataset that was written without.

    Raises:
        DatasetError: what says so is of another size than the manifest or the number of samples wants.
    """
    brought = dataset.fetch is not None and any(info.path == PLACES for info in dataset.manifest.files)
    if not brought and not (dataset.folder / PLACES).exists():
        return None
    path, count = data_file(dataset, PLACES), len(dataset.index)
    if path.stat().st_size != 16 * count:
        raise DatasetError(
            f"{path}: {path.stat().st_size} bytes, {count} samples need {16 * count}: truncated or changed"
        )
    return np.memmap(path, "<i8", "r", shape=(count, 2))


def _fetch(opened: _Environment, places: npt.NDArray[np.int64] | None, dataset: Dataset, row: int) -> None:
    """Have a row's pages read in one go: else each page is waited for. Places that cannot be the row's are ignored."""
    if places is None:
        return
    offset, length = map(int, places[row])
    if offset >= 0 and 0 < length <= dataset.index["bytes"][row] + 2 * PAGE:
        opened.fetch(offset, length)


def _reads_ahead(dataset: Dataset) -> bool:
    mean_bytes = dataset.manifest.stored_bytes // dataset.manifest.num_samples
    return mean_bytes >= READ_AHEAD_BYTES


def _fields(transaction: Any, kind: str, row: int, allocate: Allocate) -> dict[str, Value]:
    if kind in RECORD_KINDS:
        return dict(unpack(npy.view(_value(transaction, row, "npy", allocate), "npy"), KIND_FIELDS[kind]))
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        content = _value(transaction, row, name, allocate)
        fields[name] = npy.view(content, name) if kind == "volume" else content.data
    return fields


def _value(transaction: Any, row: int, name: str, allocate: Allocate) -> npt.NDArray[np.uint8]:
    """Read an entry's whole content into memory of `allocate`, as other formats' readers do theirs.

    A view of the mapped pages would be handed on without a byte of it having been read.
    """
    value: memoryview | None = transaction.get(entry_key(row, name))
    if value is None:
        raise KeyError(f"no entry {entry_key(row, name).decode()}")
    return copied(value, name, allocate)


LMDB = Format(
    "lmdb",
    frozenset(KIND_FIELDS),
    write,
    read,
    sample_overhead_bytes=4096,
    digests_files=True,
    reads="mapped",
    stock=StockReader("benchsuite.storage.stock.lmdb:STOCK", "pip install 'benchsuite[formats]'", "lmdb"),
    advised_kinds=frozenset(KIND_FIELDS) - {"tokens"},
)
