"""Format `hdf5`, by h5py: one file, or many of `file_samples` samples each.

Encoded images lie in one blob of bytes with offsets; sequences in one dataset per field, a row per sample; volumes in a
group per sample with a dataset per field. All are contiguous, so that a read is one read of the file (past h5py, beside
other threads), unless `chunk_bytes` or `compression` ask for chunks.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.fields import KIND_FIELDS, array, encoded
from benchsuite.storage.dataset.manifest import (
    BucketClient,
    Dataset,
    Format,
    IndexRow,
    Manifest,
    ReaderShare,
    StockReader,
    dealt,
    index_row,
    text,
)
from benchsuite.storage.dataset.opened import DataFile, LocalFile, open_data
from benchsuite.storage.dataset.sample import Allocate, Array, Sample, Value
from benchsuite.storage.dataset.shards import batched
from benchsuite.storage.errors import DatasetError, reason
from benchsuite.storage.formats.write_behind import begin_to_flush
from benchsuite.storage.rawspeed.direct import open_direct, read_direct

SPOOL_BYTES = 8 << 20
MAX_OPEN_FILES = 64
DAMAGE = (OSError, KeyError, RuntimeError, IndexError, TypeError, ValueError, AttributeError)
"""What h5py raises on a file that is not as it should be."""


def write(
    folder: Path,
    samples: Iterable[Sample],
    file_samples: int = 0,
    chunk_bytes: int = 0,
    compression: str = "none",
) -> Iterator[IndexRow]:
    """Write `samples.h5`, or `samples-000000.h5` and so on with `file_samples` in each (0: all in one)."""
    if min(file_samples, chunk_bytes) < 0:
        raise DatasetError("file_samples and chunk_bytes must not be negative")
    layout = partial(_layout, chunk_bytes=chunk_bytes, compression=compression)
    source = iter(samples)
    runs = batched(source, repeat(file_samples)) if file_samples else iter([source])
    for number, run in enumerate(runs):
        first = next(run, None)
        if first is None:
            return
        name = f"samples-{number:06d}.h5" if file_samples else "samples.h5"
        yield from _write_file(folder / name, chain([first], run), first, layout)


def _layout(values: Array, chunk_bytes: int, compression: str) -> dict[str, Any]:
    """How h5py is told to store an array: contiguous unless chunks or compression are asked for."""
    if not (chunk_bytes or compression != "none") or not values.ndim or not values.size:
        return {}
    chunks: Any = True
    if chunk_bytes:
        rows = max(1, chunk_bytes // max(values[..., :1, :, :].nbytes if values.ndim > 2 else values[:1].nbytes, 1))
        axis = max(0, values.ndim - 3)
        chunks = tuple(
            1 if number < axis else min(rows, size) if number == axis else size
            for number, size in enumerate(values.shape)
        )
    return {"chunks": chunks, "compression": None if compression == "none" else compression}


def _write_file(path: Path, samples: Iterator[Sample], first: Sample, layout: Any) -> Iterator[IndexRow]:
    import h5py

    with h5py.File(path, "w") as file, path.open("rb") as stored:
        if isinstance(first.fields.get("image"), np.ndarray):
            for sample in samples:
                row = index_row(_write_volume(file, sample, layout), path.name)
                begin_to_flush(stored.fileno())
                yield row
        else:
            with _spools(path, first) as spools:
                counts: dict[str, list[int]] = {name: [] for name in spools}
                for sample in samples:
                    for name, spool in spools.items():
                        content = _row_bytes(sample, name)
                        spool.write(content)
                        counts[name].append(len(content))
                    yield index_row(sample, path.name)
                for name, spool in spools.items():
                    _store_spool(file, name, spool, counts[name], first, layout)


def _write_volume(file: Any, sample: Sample, layout: Any) -> Sample:
    """A group named by the sample's key with a dataset per field; the sample with what it occupies."""
    if f"{sample.key}/image" in file:
        raise DatasetError(f"sample {sample.key!r} comes twice")
    group = file.create_group(sample.key)
    for name in KIND_FIELDS["volume"]:
        values = np.ascontiguousarray(array(sample, name))
        stored = group.create_dataset(name, values.shape, values.dtype, **layout(values))
        stored.write_direct(values)
    return replace(sample, compressed_bytes=_compressed_bytes(file, group))


def _compressed_bytes(file: Any, group: Any) -> int | None:
    """What a sample's datasets occupy where they are compressed; None where they are not."""
    stored = [group[name] for name in KIND_FIELDS["volume"] if group[name].compression]
    if stored:
        file.flush()
    return sum(dataset.id.get_storage_size() for dataset in stored) or None


def _row_bytes(sample: Sample, name: str) -> bytes | memoryview:
    """What one sample adds to a field's dataset."""
    if name == "image":
        return encoded(sample, name)
    if name == "label":
        return np.int64(int(bytes(encoded(sample, name)))).tobytes()
    return np.ascontiguousarray(array(sample, name)).tobytes()


@contextmanager
def _spools(path: Path, first: Sample) -> Iterator[dict[str, Any]]:
    """A file per field beside the target: the number of samples, and so the size of a dataset, is known at the end."""
    paths = {name: path.with_name(f".{path.name}.{name}.spool") for name in first.fields}
    try:
        yield {name: spool.open("w+b") for name, spool in paths.items()}
    finally:
        for spool in paths.values():
            spool.unlink(missing_ok=True)


def _store_spool(file: Any, name: str, spool: Any, counts: list[int], first: Sample, layout: Any) -> None:
    """One dataset from a field's spool: a blob with offsets for images, else a row per sample."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    if name == "image":
        shape, dtype = (sum(counts),), np.dtype("u1")
        file.create_dataset("image_offsets", data=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))
    elif name == "label":
        shape, dtype = (len(counts),), np.dtype("i8")
    else:
        values = array(first, name)
        shape, dtype = (len(counts), *values.shape), values.dtype
        if set(counts) != {values.nbytes}:
            raise DatasetError(f"field {name!r}: samples of {min(counts)} and {max(counts)} bytes; all must be equal")
    spool.flush()
    rows = np.memmap(spool, dtype, "r", shape=shape)
    stored = file.create_dataset(name, shape, dtype, **layout(rows))
    step = max(1, SPOOL_BYTES // max(rows[:1].nbytes, 1))
    for start in range(0, shape[0], step):
        stored[start : start + step] = rows[start : start + step]
    spool.close()


class _Stored:
    """A dataset of an open file, and where its bytes lie: None where they are chunked, converted or not there."""

    def __init__(self, group: Any, name: str, file: DataFile, direct: int | None) -> None:
        self.dataset, self._direct = own_dataset(group, name), direct
        self.name, self._file, self._low = name, file, self.dataset.id
        self.shape, self.dtype, self._offset = self.dataset.shape, self.dataset.dtype, _place(self.dataset)

    def whole(self, allocate: Allocate) -> Array:
        """All of it."""
        return self.rows(0, self.shape[0], allocate)

    def row(self, at: int, allocate: Allocate) -> Array:
        """One row, without its first axis."""
        if not 0 <= at < self.shape[0]:
            raise ValueError(f"{self.name} has {self.shape[0]} rows, none at {at}")
        return np.asarray(self.rows(at, at + 1, allocate)[0])

    def rows(self, start: int, end: int, allocate: Allocate) -> Array:
        """Read some rows into memory of `allocate`.

        What lies in one piece is read past h5py, which lets in one thread at a time and reads more slowly.
        """
        shape = (end - start, *self.shape[1:])
        size, row_size = (math.prod(lengths) * self.dtype.itemsize for lengths in (shape, shape[1:]))
        if self._offset is not None:
            self._refuse_outside(self._offset + start * row_size, size)
        if self._direct is not None:
            if self._offset is None:
                raise ValueError(f"{self.name} is chunked or converted: it cannot be read directly")
            place = self._offset + start * row_size
            read = read_direct(self._direct, place, size, self.name, allocate, Path(self.name))
            direct: Array = read.view(self.dtype).reshape(shape)
            return direct
        memory = allocate(self.name, size)[:size]
        values: Array = memory.view(self.dtype).reshape(shape)
        if self._offset is not None:
            self._file.read_at(self._offset + start * row_size, memory)
        elif size:
            self._select(start, values)
        return values

    def _refuse_outside(self, offset: int, size: int) -> None:
        """What a damaged file promises must not be allocated."""
        there = self._file.size
        if offset + size > there:
            raise ValueError(f"{self.name}: bytes {offset}..{offset + size} are outside the file's {there}: truncated")

    def _select(self, start: int, values: Array) -> None:
        """Read rows by the library's own calls: h5py's indexing takes longer than the read."""
        from h5py import h5s

        wanted = self._low.get_space()
        wanted.select_hyperslab((start, *[0] * (values.ndim - 1)), values.shape)
        self._low.read(h5s.create_simple(values.shape), wanted, values)


def _place(stored: Any) -> int | None:
    """Where in the file, a user block included, a dataset's bytes lie as they are in memory; None where they do not."""
    from h5py import h5t

    plain = stored.chunks is None and stored.dtype.kind in "iuf"
    if (
        not plain
        or stored.id.get_type() != h5t.py_create(stored.dtype)
        or stored.id.get_storage_size() != stored.nbytes
    ):
        return None
    offset: int | None = stored.id.get_offset()
    return offset


class _File:
    """An open HDF5 file and where its first sample stands in the index."""

    def __init__(self, dataset: Dataset, name: str, first_row: int, direct: bool) -> None:
        import h5py

        self.first_row, self.kind, self.direct = first_row, dataset.manifest.kind, None
        with ExitStack() as stack:
            self.stored: DataFile = open_data(dataset, name)
            stack.callback(self.stored.close)
            self.path = self.stored.path
            try:
                # HDF5 reads files of this machine itself, an object through Python's kind of file.
                whole: Any = self.path if isinstance(self.stored, LocalFile) else self.stored.stream()
                self.file = stack.enter_context(h5py.File(whole, "r", rdcc_nbytes=1 << 20))
                if direct:
                    self.direct = open_direct(self.path)
                    stack.callback(os.close, self.direct)
                if self.kind != "volume":
                    names = KIND_FIELDS[self.kind]
                    self.fields = {name: _Stored(self.file, name, self.stored, self.direct) for name in names}
                    if self.kind == "image":
                        _refuse_no_blob(self.fields["image"])
                        self.offsets, self.labels = self.file["image_offsets"][:], self.file["label"][:]
            except DAMAGE as error:
                raise DatasetError(f"{self.path}: not a whole HDF5 file: {reason(error)}") from error
            self.close = stack.pop_all().close

    def read(self, key: str, row: int, allocate: Allocate) -> tuple[dict[str, Value], int | None]:
        """The fields of a sample, and the bytes it occupies where it is compressed."""
        try:
            if self.kind == "volume":
                return self._volume(self.file[key], allocate)
            at = row - self.first_row
            if self.kind == "image":
                return self._image(at, allocate), None
            return {name: stored.row(at, allocate) for name, stored in self.fields.items()}, None
        except DAMAGE as error:
            raise DatasetError(f"{self.path}: sample {key!r}: {reason(error)}") from error

    def _volume(self, group: Any, allocate: Allocate) -> tuple[dict[str, Value], int | None]:
        stored = [_Stored(group, name, self.stored, self.direct) for name in KIND_FIELDS["volume"]]
        return {field.name: field.whole(allocate) for field in stored}, _compressed_bytes(self.file, group)

    def _image(self, at: int, allocate: Allocate) -> dict[str, Value]:
        start, end = int(self.offsets[at]), int(self.offsets[at + 1])
        blob = self.fields["image"]
        if not 0 <= start <= end <= blob.shape[0]:
            raise ValueError(f"image_offsets {start}..{end} are outside the {blob.shape[0]} bytes stored")
        return {"image": blob.rows(start, end, allocate).data, "label": str(int(self.labels[at])).encode()}


def _refuse_no_blob(stored: _Stored) -> None:
    if stored.dtype != np.uint8 or len(stored.shape) != 1:
        raise ValueError(f"image is {stored.dtype} of shape {stored.shape}, not bytes in a row")


def own_dataset(group: Any, name: str) -> Any:
    """A dataset or group that lies in this file: links, external storage and virtual datasets lead to other files."""
    import h5py

    if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"{name} is a link, which is not followed")
    stored = group[name]
    if isinstance(stored, h5py.Dataset) and stored.id.get_offset() is None:  # else its bytes lie here in one piece
        made = stored.id.get_create_plist()  # a fifth of the time that h5py's own properties take
        if made.get_external_count() or made.get_layout() == h5py.h5d.VIRTUAL:
            raise ValueError(f"{name} leads out of the file")
    return stored


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples, each read into the lane's memory; files are opened when they are first needed."""
    index = dataset.index
    opened: dict[bytes, _File] = {}
    firsts: Mapping[bytes, int] = dict(zip(*np.unique(index["file"], return_index=True), strict=True))
    try:
        for row in map(int, dealt(len(index), lane)):
            name = bytes(index["file"][row])
            if name not in opened and len(opened) >= MAX_OPEN_FILES:
                opened.pop(next(iter(opened))).close()
            if name not in opened:
                opened[name] = _File(dataset, text(name), int(firsts[np.bytes_(name)]), lane.direct)
            key = text(index["key"][row])
            fields, compressed = opened[name].read(key, row, lane.allocate)
            path = str(opened[name].path)
            yield Sample(key, fields, row, path, compressed_bytes=compressed)
    finally:
        for file in opened.values():
            file.close()


def direct_problem(manifest: Manifest) -> str | None:
    """What is chunked or compressed is read by the library."""
    told = [f"{name}={manifest.options[name]}" for name in ("chunk_bytes", "compression") if manifest.options.get(name)]
    told = [word for word in told if word != "compression=none"]
    return f"{', '.join(told)}: read by h5py, through the page cache" if told else None


HDF5 = Format(
    "hdf5",
    frozenset(KIND_FIELDS),
    write,
    read,
    options={"file_samples": int, "chunk_bytes": int, "compression": ("none", "gzip", "lzf")},
    space_factor=2.1,
    direct_problem=direct_problem,
    reads="calls",
    from_buckets=True,
    stock=StockReader(
        "benchsuite.storage.stock.hdf5:STOCK",
        "pip install 'benchsuite[formats]'",
        "h5py",
        BucketClient("obstore", "pip install 'benchsuite[s3]'"),
    ),
    advised_kinds=frozenset(KIND_FIELDS) - {"tokens"},
)
