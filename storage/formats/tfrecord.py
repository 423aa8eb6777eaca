"""Format `tfrecord`: shards of `tf.train.Example` records with masked CRC-32C checksums, without TensorFlow.

Beside each shard lies an index with the place and size of every record, in the text form that DALI reads.

The record: length (uint64), its CRC (uint32), the Example, its CRC (uint32), little-endian; a CRC is masked by rotation
and a constant (tensorflow.org, "TFRecord and tf.train.Example").
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS
from benchsuite.storage.dataset.manifest import Dataset, Format, IndexRow, Manifest, ReaderShare, StockReader
from benchsuite.storage.dataset.opened import DataFile, LocalFile
from benchsuite.storage.dataset.sample import Allocate, Sample, fresh, num_bytes
from benchsuite.storage.dataset.shards import Pool, Stored, problem, read_shards, smallest_lane
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tf_example import Part, decode, encode
from benchsuite.storage.formats.write_behind import Shard, write_shards

SUFFIX = ".tfrecord"
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"


def masked_crc(*parts: Any) -> int:
    """TFRecord's checksum of bytes, given in parts."""
    from crc32c import crc32c

    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def write(
    folder: Path,
    samples: Iterable[Sample],
    shard_samples: int | None = None,
    digests: dict[str, str] | None = None,
) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each, or as `shard_sizes` tells, and their indices.

    The shards' digests go into `digests`.
    """
    return write_shards(folder, samples, shard_samples, SUFFIX, digests, _store, lambda shard, places: "".join(places))


def _store(shard: Shard, sample: Sample) -> str:
    """Append a sample's record; its line of the index."""
    start = shard.bytes
    shard.write(_record(encode(sample)))
    return f"{start} {shard.bytes - start}\n"


def _record(parts: list[Part]) -> list[Part]:
    """A record that holds these parts, one after another."""
    length = struct.pack("<Q", sum(map(num_bytes, parts)))
    return [length + _CRC.pack(masked_crc(length)), *parts, _CRC.pack(masked_crc(*parts))]


def records(file: DataFile, allocate: Allocate = fresh) -> Iterator[Any]:
    """The records of an open shard, checksums verified; each is read at once with the head of the next.

    Raises:
        DatasetError: a checksum is wrong, or the file ends inside a record.
    """
    for number, (payload, is_whole) in enumerate(framed(file, allocate)):
        if not is_whole:
            raise damaged(file.path, number)
        yield payload


def damaged(path: Path, number: int) -> DatasetError:
    """The error for a record that is not what was written."""
    return DatasetError(f"{path}: record {number}: its CRC is wrong: damaged")


def framed(file: DataFile, allocate: Allocate = fresh) -> Iterator[tuple[Any, bool]]:
    """The records of an open shard, and whether each is what was written; after one that is not the next one follows.

    Raises:
        DatasetError: the checksum of a length is wrong, or the file ends inside a record.
    """
    path, end = file.path, file.size
    number = place = 0
    head = file.peek(_HEADER.size, 0)
    while head:
        length, place = _length(head, f"{path}: record {number}"), place + _HEADER.size
        if place + length + _CRC.size > end:
            raise DatasetError(f"{path}: record {number}: the file ends inside it: truncated")
        wanted = min(length + _CRC.size + _HEADER.size, end - place)
        content = file.read_at(place, allocate("record", wanted)[:wanted])
        payload, rest = content[:length], content[length:].tobytes()
        yield payload, masked_crc(payload) == _CRC.unpack_from(rest)[0]
        number, place, head = number + 1, place + length + _CRC.size, rest[_CRC.size :]


class Counted(NamedTuple):
    """The records of a file, from its beginning to where no more can be read."""

    number: int
    trouble: str = ""
    """Why no more can be read; nothing where the file has no more."""
    byte: int = 0
    """Where that is."""


def count_records(path: Path) -> Counted:
    """The records of a file, by stepping from one to the next.

    Raises:
        DatasetError: it is compressed as a whole.
    """
    count = place = 0
    with LocalFile(path) as file:
        while place < file.size:
            head = file.peek(_HEADER.size, place)
            has_head, is_packed = len(head) == _HEADER.size, not count and head.startswith(_GZIP)
            if has_head and not is_packed and not _has_right_crc(head):
                return Counted(count, "the CRC of a length is wrong", place)
            length = _length(head, f"{path}: record {count}") if has_head else 0  # the file ends before the content
            place += _HEADER.size + length + _CRC.size
            if place > file.size:
                return Counted(count, "cut short", file.size)
            count += 1
    return Counted(count)


def _has_right_crc(head: bytes) -> bool:
    return bool(masked_crc(head[:8]) == _HEADER.unpack(head)[1])


def _length(head: bytes, where: str) -> int:
    """The length of a record that begins with these bytes."""
    if len(head) < _HEADER.size:
        raise DatasetError(f"{where}: the file ends inside it: truncated")
    if not _has_right_crc(head):
        gzipped = head.startswith(_GZIP)
        what = "compressed by gzip as a whole; unpack it first" if gzipped else "damaged, or no TFRecord"
        raise DatasetError(f"{where}: the CRC of its length is wrong: {what}")
    return int(_HEADER.unpack(head)[0])


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    return read_shards(_read_shard, dataset, lane)


def _read_shard(manifest: Manifest, file: DataFile, memory: Pool) -> Iterator[Stored]:
    """Key, fields and memory of a shard's records."""
    dtypes = {info.name: info.dtype for info in manifest.fields}
    for number, payload in enumerate(records(file, memory)):
        key, fields = decode(manifest.kind, payload, f"{file.path}: record {number}", dtypes)
        yield Stored(key, fields, [payload])


TFRECORD = Format(
    "tfrecord",
    frozenset(KIND_FIELDS),
    write,
    read,
    problem,
    smallest_lane,
    sequential=True,
    options={"shard_samples": int},
    # integers are varints of 7 bits a byte: a uint16 takes up to 3
    space_factor={kind: 1.5 if kind in RECORD_KINDS else 1.05 for kind in KIND_FIELDS},
    sample_overhead_bytes=384,
    digests_files=True,
    reads="calls",
    layout="tfrecord",
    from_buckets=True,
    stock=StockReader("benchsuite.storage.stock.tfrecord:STOCK", "pip install 'benchsuite[formats]'", "tfrecord"),
    dali_kinds=frozenset({"image"}),
)
