"""Format `mds`: the shards of MosaicML's `streaming`, written and read without that library.

A shard: the number of samples and where each begins and ends (uint32), its columns as JSON, the samples. A sample: the
sizes (uint32) of those of its values that vary, then its values, in the order of its columns' names. `index.json`
repeats the columns and lists the shards (github.com/mosaicml/streaming, docs/source/preparing_datasets, version 2).
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchsuite.storage.dataset.fields import KIND_FIELDS, array, encoded, image_extension
from benchsuite.storage.dataset.manifest import (
    Dataset,
    Format,
    IndexRow,
    Manifest,
    ReaderShare,
    StockReader,
    class_label,
    index_row,
)
from benchsuite.storage.dataset.opened import DataFile
from benchsuite.storage.dataset.sample import Array, Sample, Value, num_bytes
from benchsuite.storage.dataset.shards import Pool, Stored, problem, read_shards, smallest_lane
from benchsuite.storage.errors import DatasetError, reason
from benchsuite.storage.formats.write_behind import Shard, new_shards

INDEX = "index.json"
KEY = "key"
"""The column of samples' names."""
MAX_SHARD_BYTES = 1 << 32
"""Places in a shard are uint32."""
_U32 = np.dtype("<u4")
_IMAGES = {"jpg": "jpeg", "png": "png"}
_DTYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}


class Column(NamedTuple):
    """A column, how its values are encoded, and their bytes where these are the same in all samples."""

    name: str
    encoding: str
    size: int | None


def write(
    folder: Path,
    samples: Iterable[Sample],
    shard_samples: int | None = None,
    digests: dict[str, str] | None = None,
) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each, or as `shard_sizes` tells; their digests go into `digests`."""
    told: list[dict[str, Any]] = []
    for name, shard, run, size in new_shards(folder, samples, shard_samples, "shard.{:05d}.mds", digests):
        first = next(run)
        columns = _columns(first)
        config = _config(columns)
        text = json.dumps(config, sort_keys=True).encode()
        places = [shard.begin(_U32.itemsize * (size + 2) + len(text))]
        for sample in chain([first], run):
            places.append(_store(name, shard, sample, columns))
            yield index_row(sample, name)
        count = np.array([len(places) - 1, *places], _U32)
        shard.write_head(count.tobytes() + text)
        file = {"basename": name, "bytes": shard.bytes, "hashes": {}}
        told.append({**config, "raw_data": file, "zip_data": None, "samples": len(places) - 1})
    (folder / INDEX).write_text(json.dumps({"version": 2, "shards": told}, sort_keys=True))


def _columns(sample: Sample) -> list[Column]:
    """The columns of samples that are like this one, in the order of their names."""
    found = [Column(KEY, "str", None)]
    for name, value in sample.fields.items():
        if isinstance(value, np.ndarray):
            found.append(Column(name, *_array_encoding(value)))
        elif name == "image":
            found.append(Column(name, _IMAGES[image_extension(value)], None))
        else:
            found.append(Column(name, "int", 8))
    return sorted(found)


def _array_encoding(value: Array) -> tuple[str, int | None]:
    """How arrays of one shape are encoded; volumes, which have four axes, may have any."""
    if value.ndim == 4:
        return f"ndarray:{value.dtype.name}", None
    shape = ",".join(map(str, value.shape))
    return f"ndarray:{value.dtype.name}:{shape}" if shape else value.dtype.name, value.nbytes


def _config(columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": [each.name for each in columns],
        "column_encodings": [each.encoding for each in columns],
        "column_sizes": [each.size for each in columns],
    }


def _store(name: str, shard: Shard, sample: Sample, columns: Sequence[Column]) -> int:
    """Append a sample; where it ends.

    Raises:
        DatasetError: beyond what a shard can hold.
    """
    values = [_encode(sample, column) for column in columns]
    sizes = [sum(map(num_bytes, parts)) for parts in values]
    varying = [size for size, column in zip(sizes, columns, strict=True) if column.size is None]
    if shard.bytes + sum(sizes) + _U32.itemsize * len(varying) >= MAX_SHARD_BYTES:
        raise DatasetError(f"{name}: a shard of this format holds less than 4 GiB; give a smaller -o shard_samples=N")
    shard.write([np.array(varying, _U32).tobytes(), *chain.from_iterable(values)])
    return shard.bytes


def _encode(sample: Sample, column: Column) -> list[bytes | memoryview]:
    """A value as a shard holds it, in parts."""
    if column.name == KEY:
        return [sample.key.encode()]
    if column.encoding == "int":
        return [np.int64(class_label(sample)).tobytes()]
    if column.encoding in _IMAGES.values():
        return [encoded(sample, column.name)]
    value = np.ascontiguousarray(array(sample, column.name))
    if column.size is not None:
        return [value.tobytes()]
    width = next(power for power in range(4) if max(value.shape) < 1 << (8 << power))
    shape = np.array(value.shape, f"<u{1 << width}")
    return [bytes([len(value.shape) << 2 | width]) + shape.tobytes(), value.reshape(-1).view(np.uint8).data]


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    return read_shards(_read_shard, dataset, lane)


def _read_shard(manifest: Manifest, file: DataFile, memory: Pool) -> Iterator[Stored]:
    """A shard's samples."""
    places, columns = head(file)
    for number, (start, end) in enumerate(pairwise(places)):
        content = file.read_at(start, memory("sample", end - start)[: end - start])
        key, fields = _fields(manifest.kind, content, columns, f"{file.path}: sample {number}")
        yield Stored(key, fields, [content])


def head(file: DataFile) -> tuple[list[int], list[Column]]:
    """Where the samples of an open shard lie, with the end of the last one, and their columns.

    Raises:
        DatasetError: it is damaged, or no such shard.
    """
    path, size, width = file.path, file.size, _U32.itemsize
    count = int.from_bytes(file.peek(width, 0), "little")
    begin = width * (count + 2)
    if begin > size:
        raise DatasetError(f"{path}: {size} bytes, its head says {count} samples: truncated or damaged")
    places = np.frombuffer(file.peek(begin - width, width), _U32).astype(np.int64)
    if places[0] < begin or places[-1] > size or (np.diff(places) < 0).any():
        raise DatasetError(f"{path}: places in its head that no file of {size} bytes has: damaged")
    try:
        config = json.loads(file.peek(int(places[0]) - begin, begin).rstrip(b"\0"))
        return places.tolist(), columns_of(config)
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: its head says no columns: {reason(error)}") from error


def columns_of(config: Any) -> list[Column]:
    """The columns that a shard, or an entry of `index.json`, speaks of.

    Raises:
        KeyError, TypeError, ValueError: there are none.
    """
    names, encodings, sizes = (config[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    columns = [Column(str(name), str(encoding), size) for name, encoding, size in zip(names, encodings, sizes)]  # noqa: B905
    if len(columns) != len(names) or not all(isinstance(each.size, int | None) for each in columns):
        raise ValueError("names, encodings and sizes do not match")
    return columns


def values_of(content: Array, columns: Sequence[Column], where: str) -> dict[str, Array]:
    """The encoded values of a sample, each a part of its bytes.

    Raises:
        DatasetError: the sizes that it says are not its own.
    """
    varying = sum(not column.size for column in columns)
    place = _U32.itemsize * varying
    told = iter(np.frombuffer(content[:place].tobytes(), _U32).tolist() if len(content) >= place else [])
    sizes = [column.size or next(told, -1) for column in columns]
    if min(sizes) < 0 or place + sum(sizes) != len(content):
        raise DatasetError(f"{where}: its values' sizes are not those of its {len(content)} bytes: damaged")
    found = {}
    for column, size in zip(columns, sizes, strict=True):
        found[column.name] = content[place : place + size]
        place += size
    return found


def decoded(content: Array, encoding: str) -> Any:
    """A value: text, encoded bytes, or an array, whose shape is () for a number.

    Raises:
        ValueError, LookupError: it is not what its encoding says, or the encoding is another one.
    """
    name, _, rest = encoding.partition(":")
    if name in ("bytes", *_IMAGES.values()):
        return content.data
    if name in ("str", "str_int"):
        return content.tobytes().decode()
    if name in _DTYPES or name == "int":
        return content.view("int64" if name == "int" else name).reshape(())
    if name != "ndarray":
        raise ValueError(f"encoding {encoding} is not read; allowed: bytes, jpeg, png, str, numbers, ndarray")
    dtype, _, shape = rest.partition(":")
    if not dtype:
        dtype, content = _NUMBERS[int(content[0])], content[1:]
    if dtype not in _DTYPES:
        raise ValueError(f"encoding {encoding}: no such dtype")
    if shape:
        return _shaped(content, dtype, [int(each) for each in shape.split(",")])
    axes, width = int(content[0]) >> 2, 1 << (int(content[0]) & 3)
    end = 1 + axes * width
    return _shaped(content[end:], dtype, content[1:end].copy().view(f"<u{width}").tolist())


_NUMBERS = {bits | at: f"{name}{bits}" for bits in (8, 16, 32, 64) for at, name in enumerate(("uint", "int"))} | {
    18: "float16",
    34: "float32",
    66: "float64",
}
"""Names of dtypes by their numbers, where a column does not say them."""


def _shaped(content: Array, dtype: str, shape: list[int]) -> Array:
    if math.prod(shape) * np.dtype(dtype).itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are no {dtype} of shape {tuple(shape)}")
    return content.view(dtype).reshape(shape)


def _fields(kind: str, content: Array, columns: Sequence[Column], where: str) -> tuple[str, dict[str, Value]]:
    """Key and fields of a sample of ours."""
    values, encodings = values_of(content, columns, where), {column.name: column.encoding for column in columns}
    try:
        key, *found = (decoded(values[name], encodings[name]) for name in (KEY, *KIND_FIELDS[kind]))
        fields = dict(zip(KIND_FIELDS[kind], found, strict=True))
        if kind == "image":
            fields["label"] = str(int(fields["label"])).encode()
    except (ValueError, LookupError, TypeError) as error:
        raise DatasetError(f"{where}: {reason(error)}") from error
    return str(key), fields


MDS = Format(
    "mds",
    frozenset(KIND_FIELDS),
    write,
    read,
    problem,
    smallest_lane,
    sequential=True,
    options={"shard_samples": int},
    sample_overhead_bytes=256,
    digests_files=True,
    reads="calls",
    from_buckets=True,
    stock=StockReader("benchsuite.storage.stock.mds:STOCK", "pip install mosaicml-streaming", "streaming"),
)
