"""Format `parquet`: files of row groups, by pyarrow, with Hugging Face's columns and a checksum on every page.

Images are a struct of `bytes` and `path` beside `label`; sequences are lists of a fixed length. A row group is read in
one call, then decoded: so that what storage takes is told from what Parquet takes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.storage.dataset.fields import RECORD_KINDS, array, encoded, image_extension
from benchsuite.storage.dataset.manifest import (
    BucketClient,
    Dataset,
    Format,
    IndexRow,
    Manifest,
    ReaderShare,
    StockReader,
    class_label,
    content_digest,
)
from benchsuite.storage.dataset.opened import DataFile
from benchsuite.storage.dataset.sample import Array, Sample, Value, copied, num_bytes
from benchsuite.storage.dataset.shards import MAX_SHARD_SAMPLES, Pool, Stored, problem, read_shards, smallest_lane
from benchsuite.storage.errors import DatasetError, reason
from benchsuite.storage.formats.write_behind import Shard, new_shards

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "key"
"""The column of samples' names."""
_MAGIC = b"PAR1"
_END_BYTES = 8
"""What stands behind the footer: its length, and the magic."""
_FEATURES = (
    b'{"info": {"features": {"key": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}, '
    b'"label": {"dtype": "int64", "_type": "Value"}}}}'
)
"""Metadata by which Hugging Face's `datasets` knows that the images are images."""


def write(
    folder: Path,
    samples: Iterable[Sample],
    shard_samples: int | None = None,
    row_group_samples: int = MAX_SHARD_SAMPLES,
    compression: str | None = None,
    digests: dict[str, str] | None = None,
) -> Iterator[IndexRow]:
    """Write files of `shard_samples` samples each, or as `shard_sizes` tells, in row groups of `row_group_samples`.

    Unless told, images are not compressed, all else by snappy: so Hugging Face's `datasets` stores them. The files'
    digests go into `digests`.
    """
    if row_group_samples < 1:
        raise DatasetError(f"row_group_samples must be at least 1. Found: {row_group_samples}")
    for name, shard, run, _ in new_shards(folder, samples, shard_samples, "shard-{:06d}.parquet", digests):
        yield from _write_shard(name, shard, run, row_group_samples, compression)


class _Sink:
    """A shard as pyarrow writes to it."""

    closed = False

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def write(self, content: bytes) -> int:
        self._shard.write([content])
        return len(content)

    def tell(self) -> int:
        return self._shard.bytes

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The shard is closed by who opened it."""


def _write_shard(
    name: str, shard: Shard, run: Iterator[Sample], row_group_samples: int, compression: str | None
) -> Iterator[IndexRow]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    writer = None
    while group := [_kept(sample) for sample in islice(run, row_group_samples)]:
        table, has_images = _table(group), "image" in group[0].fields
        writer = writer or ParquetWriter(
            pa.PythonFile(_Sink(shard), mode="w"),
            table.schema,
            compression=compression or ("none" if has_images else "snappy"),
            use_dictionary=not has_images,
            write_page_checksum=True,
            write_statistics=False,  # nobody asks for samples by their content, which would stand there twice
        )
        before = shard.bytes
        writer.write_table(table, row_group_size=len(group))
        content, stored = sum(sample.stored_bytes for sample in group), shard.bytes - before
        for sample in group:
            size = _stored_bytes(sample.stored_bytes, content, stored)
            yield IndexRow(sample.key, name, size, content_digest(sample), class_label(sample))
    if writer is not None:
        writer.close()


def _stored_bytes(size: int, content: int, stored: int) -> int:
    """What a sample of `size` bytes occupies: its share of a row group of `stored` bytes that holds `content`.

    No more than its own: what Parquet needs around it is no content.
    """
    return min(size, size * stored // max(content, 1))


def _kept(sample: Sample) -> Sample:
    """A copy, whose arrays hold."""
    fields = {
        name: np.array(value) if isinstance(value, np.ndarray) else bytes(value)
        for name, value in sample.fields.items()
    }
    return Sample(sample.key, fields, digest=content_digest(sample))


def _table(samples: list[Sample]) -> "pa.Table":
    """A row group of samples."""
    import pyarrow as pa

    keys = [sample.key for sample in samples]
    if "image" in samples[0].fields:
        images = [encoded(sample, "image") for sample in samples]
        paths = [f"{key}.{image_extension(image)}" for key, image in zip(keys, images, strict=True)]
        columns = [pa.array(images, pa.binary()), pa.array(paths, pa.string())]
        fields = {
            "image": pa.StructArray.from_arrays(columns, ["bytes", "path"]),
            "label": pa.array([class_label(sample) for sample in samples], pa.int64()),
        }
        return pa.table({KEY: keys, **fields}).replace_schema_metadata({b"huggingface": _FEATURES})
    found = {name: np.stack([array(sample, name) for sample in samples]) for name in samples[0].fields}
    return pa.table({KEY: keys, **{name: _column(values) for name, values in found.items()}})


def _column(values: Array) -> "pa.Array":
    """A list of fixed length a row, or a number."""
    import pyarrow as pa

    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim > 1 else flat


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    return read_shards(partial(_read_shard, lane.unpacked), dataset, lane)


def _read_shard(
    unpacked: Callable[[float], None], manifest: Manifest, file: DataFile, memory: Pool
) -> Iterator[Stored]:
    """A shard's rows; `unpacked` is told the seconds that row groups took to decode."""
    rows = _images if manifest.kind == "image" else _sequences
    footer = _footer(file)
    for number in range(footer.num_row_groups):
        where, (start, end) = f"{file.path}: row group {number}", _extent(footer, number, file)
        content = file.read_at(start, memory("row group", end - start)[: end - start])
        began_s = time.thread_time()
        table = _decoded(content, start, footer, number, where)
        unpacked(time.thread_time() - began_s)
        memory.release([content])
        total = _told(where, partial(_content_bytes, table))
        for found in (found for batch in table.to_batches() for found in rows(batch, memory, where)):
            size = sum(map(num_bytes, found.fields.values()))
            yield found._replace(compressed_bytes=_stored_bytes(size, total, end - start))


def _content_bytes(table: "pa.Table") -> int:
    """Bytes of the samples that a row group holds."""
    import pyarrow.compute as pc

    if "image" in table.column_names:
        images = pc.sum(pc.binary_length(pc.struct_field(table["image"], "bytes"))).as_py() or 0
        return int(images) + sum(len(str(label)) for label in table["label"].to_pylist())
    types = [table.schema.field(name).type for name in table.column_names if name != KEY]
    sizes = [getattr(each, "list_size", 1) * getattr(each, "value_type", each).bit_width // 8 for each in types]
    return int(table.num_rows * sum(sizes))


def _footer(file: DataFile) -> Any:
    """The metadata at a file's end.

    Raises:
        DatasetError: there are none.
    """
    import pyarrow as pa
    from pyarrow.parquet import read_metadata

    size, path = file.size, file.path
    end = file.peek(_END_BYTES, max(size - _END_BYTES, 0))
    length = int.from_bytes(end[:4], "little") + _END_BYTES
    if end[4:] != _MAGIC or length > size:
        raise DatasetError(f"{path}: no Parquet footer at its end: truncated or damaged")
    content = file.peek(length, size - length)
    return _told(f"{path}: its footer", lambda: read_metadata(pa.BufferReader(content)))


def _extent(footer: Any, number: int, file: DataFile) -> tuple[int, int]:
    """Where a row group lies in its file: from its first page to behind its last one.

    Raises:
        DatasetError: the footer names places that no file has.
    """
    group = footer.row_group(number)
    columns = [group.column(each) for each in range(group.num_columns)]
    starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset)), default=0) for each in columns]
    start = min(starts)
    end = max(at + each.total_compressed_size for at, each in zip(starts, columns, strict=True))
    if not 0 < start < end <= file.size:
        raise DatasetError(f"{file.path}: row group {number}: its footer says bytes {start} to {end}: damaged")
    return start, end


class _Window:
    """A part of a file that was read, as pyarrow reads from it."""

    closed = False

    def __init__(self, content: Array, start: int) -> None:
        self._content, self._start, self._place = content, start, start

    def seek(self, offset: int, whence: int = 0) -> int:
        end = self._start + len(self._content)
        self._place = (0, self._place, end)[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int) -> Any:
        import pyarrow as pa

        start = max(self._place - self._start, 0)
        self._place += size
        return pa.py_buffer(self._content[start : start + size])

    def close(self) -> None:
        """Nothing is open."""


def _decoded(content: Array, start: int, footer: Any, number: int, where: str) -> Any:
    """The table that a row group holds, checksums verified, by this thread alone.

    Raises:
        DatasetError: it is damaged.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    def decode() -> Any:
        window = pa.PythonFile(_Window(content, start), mode="r")
        opened = ParquetFile(window, metadata=footer, page_checksum_verification=True, pre_buffer=False)
        table = opened.read_row_group(number, use_threads=False)
        if any(table[name].null_count for name in table.column_names):
            raise DatasetError(f"{where}: a value is missing")
        return table

    return _told(where, decode)


def _told(where: str, call: Callable[[], Any]) -> Any:
    """What a call to pyarrow gives.

    Raises:
        DatasetError: in the place of pyarrow's errors.
    """
    import pyarrow as pa

    try:
        return call()
    except DatasetError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise DatasetError(f"{where}: {reason(error)}") from error


def _images(batch: "pa.RecordBatch", memory: Pool, where: str) -> Iterator[Stored]:
    keys, labels, images = _told(where, lambda: (batch[KEY], batch["label"].to_numpy(), batch["image"].field("bytes")))
    _, places, content = images.buffers()
    offsets = np.frombuffer(places, np.int32)[images.offset :]
    values = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    for row, key in enumerate(keys):
        image = copied(values[offsets[row] : offsets[row + 1]].data, "image", memory)
        yield Stored(key.as_py(), {"image": image.data, "label": str(int(labels[row])).encode()}, [image])


def _sequences(batch: "pa.RecordBatch", memory: Pool, where: str) -> Iterator[Stored]:
    names = [name for name in batch.schema.names if name != KEY]
    keys, columns = _told(where, lambda: (batch[KEY], {name: _values(batch[name]) for name in names}))
    for row, key in enumerate(keys):
        fields: dict[str, Value] = {}
        used = []
        for name, values in columns.items():
            used.append(copied(values[row : row + 1].reshape(-1).view(np.uint8).data, name, memory))
            fields[name] = used[-1].view(values.dtype).reshape(values.shape[1:])
        yield Stored(key.as_py(), fields, used)


def _values(column: "pa.Array") -> Array:
    """The numbers of a column: (rows,), or (rows, length) of lists."""
    length = getattr(column.type, "list_size", None)
    if length is None:
        return np.asarray(column.to_numpy())
    return np.asarray(column.flatten().to_numpy()).reshape(len(column), length)


PARQUET = Format(
    "parquet",
    RECORD_KINDS | {"image"},
    write,
    read,
    problem,
    smallest_lane,
    sequential=True,
    options={
        "shard_samples": int,
        "row_group_samples": int,
        "compression": ("none", "snappy", "gzip", "zstd"),
    },
    # a uint16 that fits no dictionary takes four bytes
    space_factor={"image": 1.05, "mlm": 1.5, "tokens": 2.1},
    sample_overhead_bytes=512,
    digests_files=True,
    reads="calls",
    from_buckets=True,
    stock=StockReader(
        "benchsuite.storage.stock.parquet:STOCK",
        "pip install 'benchsuite[formats]'",
        "pyarrow",
        BucketClient("pyarrow", "pip install 'benchsuite[formats]'", always_verifies=True),
    ),
)
