"""Format `webdataset`: tar shards read in sequence by the webdataset library.

The library imports torch, so it is imported where it is used: planning a sweep needs neither.
"""

import struct
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, image_extension, record, unpack
from benchsuite.storage.dataset.manifest import (
    BucketClient,
    Dataset,
    Format,
    IndexRow,
    Manifest,
    ReaderShare,
    StockReader,
)
from benchsuite.storage.dataset.opened import DataFile
from benchsuite.storage.dataset.sample import Allocate, Array, Sample, Value, num_bytes
from benchsuite.storage.dataset.shards import Pool, Stored, problem, read_shards, smallest_lane
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.write_behind import Shard, write_shards

Parts = tuple[bytes | memoryview, ...]
_HEADER = struct.Struct("100s24x12s12x8sc188xc166x")
"""What is looked at of a member's header: name, size, checksum, type, and whether the name has a prefix."""
CORRUPT = (tarfile.TarError, EOFError, OverflowError, ValueError)
"""What tarfile raises at headers that it cannot read; `DatasetError`, a ValueError too, is to be caught before."""


def write(
    folder: Path,
    samples: Iterable[Sample],
    shard_samples: int | None = None,
    digests: dict[str, str] | None = None,
) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each, or as `shard_sizes` tells; their digests go into `digests`."""
    return write_shards(folder, samples, shard_samples, ".tar", digests, _store, _finish)


def _store(shard: Shard, sample: Sample) -> str:
    """Append a sample's members; where each lies, in the text form that DALI reads.

    A name with white space cannot stand in it.
    """
    places = []
    for extension, parts in _members(sample).items():
        name = f"{sample.key}.{extension}"
        place, size = _write_member(shard, name, parts)
        places.append(f"{extension} {place} {size} {name}")
    return " ".join(places) if all(len(place.split()) == 4 for place in places) else ""


def _write_member(shard: Shard, name: str, parts: Parts) -> tuple[int, int]:
    """Header, content and padding; where the content lies. tarfile itself would copy it in small pieces."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = sum(map(num_bytes, parts)), 0o444
    header = info.tobuf(tarfile.PAX_FORMAT)
    place = shard.bytes + len(header)
    shard.write([header, *parts, bytes(-info.size % tarfile.BLOCKSIZE)])
    return place, info.size


def _finish(shard: Shard, places: list[str]) -> str | None:
    """End the file; its index (v1.2), or None where one of the places cannot stand there: DALI then looks itself."""
    shard.write([bytes(2 * tarfile.BLOCKSIZE)])
    shard.write([bytes(-shard.bytes % tarfile.RECORDSIZE)])
    return "".join(f"{line}\n" for line in (f"v1.2 {len(places)}", *places)) if all(places) else None


def _members(sample: Sample) -> dict[str, Parts]:
    """Contents of a sample's members by extension, as is customary for tar shards."""
    if "image" not in sample.fields:
        return {"npy": npy.parts(record(sample))}
    return dict(sorted(_member(name, value) for name, value in sample.fields.items()))


def _member(name: str, value: Value) -> tuple[str, Parts]:
    if isinstance(value, np.ndarray):
        return f"{name}.npy", npy.parts(value)
    return (image_extension(value) if name == "image" else "cls"), (value,)


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    return read_shards(_read_shard, dataset, lane)


def _read_shard(manifest: Manifest, file: DataFile, memory: Pool) -> Iterator[Stored]:
    """Key, fields and memory of a shard's samples."""
    from webdataset.tariterators import group_by_keys

    with whole_tar(file.path):
        for raw in group_by_keys(contents(file, memory)):
            used = [cast(Array, value.obj) for value in raw.values() if isinstance(value, memoryview)]
            yield Stored(str(raw["__key__"]), fields_of(manifest.kind, raw, file.path), used)


@contextmanager
def whole_tar(path: Path) -> Iterator[None]:
    """Name the file where reading a tar stumbles."""
    try:
        yield
    except DatasetError:
        raise
    except CORRUPT as error:
        raise DatasetError(f"{path}: corrupt tar: {str(error.args[0]).partition(' @ ')[0]}") from error
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error.args[0]}") from error


def contents(file: DataFile, memory: Allocate) -> Iterator[dict[str, Any]]:
    """The members of a tar file as webdataset's tools take them, each read into memory that is used again.

    The library reads tars as streams, in blocks that it joins: a tenth of what a disk gives for large members.
    """
    for name, place, size in places(file):
        content = memory(name.rpartition("/")[2].partition(".")[2], size)[:size]
        yield {"fname": name, "data": file.read_at(place, content).data, "__url__": str(file.path)}


class Place(NamedTuple):
    """Where a member's content lies."""

    name: str
    offset: int
    size: int


def places(file: DataFile, folders: bool = False) -> Iterator[Place]:
    """The members of a tar file, in order. With `folders` these are among them, with a slash after their names.

    Headers of the usual form are read here, in a third of the time; all others, and the end of the file, by tarfile.
    After a global header, which speaks of all members that follow, that is all of them.
    """
    path = file.path
    with file.stream() as stream, tarfile.open(fileobj=cast(BinaryIO, stream), mode="r:") as tar:
        found = _next(tar, path, folders)
        while found:
            if found.name.startswith("/") or ".." in found.name.split("/"):
                raise DatasetError(f"{path}: member {found.name!r} leads out of its folder")
            yield found
            tar.offset = found.offset + found.size + -found.size % tarfile.BLOCKSIZE
            found = (None if tar.pax_headers else _plain(file, tar.offset)) or _next(tar, path, folders)


def _plain(file: DataFile, offset: int) -> Place | None:
    """The member with this header, if it is a regular file's of the usual form and its checksum is right.

    Owner, mode and time are not looked at: tarfile would end at one that is no number.
    """
    header = file.peek(tarfile.BLOCKSIZE, offset)
    if len(header) < tarfile.BLOCKSIZE:
        return None
    name, size, checksum, kind, prefix = _HEADER.unpack(header)
    if kind != tarfile.REGTYPE or prefix != tarfile.NUL or size[11:] not in (b"\0", b" ") or checksum[6:] != b"\0 ":
        return None
    try:
        num_bytes, said = int(size[:11], 8), int(checksum[:6], 8)
    except ValueError:
        return None
    if num_bytes < 0 or said != sum(header) - sum(checksum) + 8 * ord(" "):
        return None
    text = name.partition(tarfile.NUL)[0].decode(tarfile.ENCODING, "surrogateescape")
    return Place(text, offset + tarfile.BLOCKSIZE, num_bytes)


def _next(tar: tarfile.TarFile, path: Path, folders: bool) -> Place | None:
    """The member at `tar.offset`; None at the end."""
    member = tar.next()
    tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
    if member is None:
        return None
    if folders and member.isdir():
        return Place(f"{member.name}/", member.offset_data, 0)
    if not member.isreg() or member.issparse():
        raise DatasetError(f"{path}: member {member.name!r} is no regular file")
    if member.size < 0:
        raise DatasetError(f"{path}: member {member.name!r} has a size below zero")
    return Place(member.name, member.offset_data, member.size)


def fields_of(kind: str, raw: Mapping[str, Any], path: Path) -> dict[str, Value]:
    """The fields of a sample, from its members by extension.

    Raises:
        DatasetError: a member is missing or is not what its extension says.
    """
    where = f"{path}: sample {raw['__key__']!r}"
    members = {extension: value for extension, value in raw.items() if not extension.startswith("__")}
    found: dict[str, Value] = {}
    if kind in RECORD_KINDS and "npy" in members:
        try:
            return dict(unpack(npy.view(members["npy"], where), KIND_FIELDS[kind]))
        except DatasetError:
            raise
        except ValueError as error:
            raise DatasetError(f"{where}: {error}") from error
    for extension, value in members.items():
        if extension.endswith(".npy"):
            found[extension.removesuffix(".npy")] = npy.view(value, where)
        elif extension in IMAGE_EXTENSIONS:
            found["image"] = value
        elif extension == "cls":
            found["label"] = value
    missing = [name for name in KIND_FIELDS[kind] if name not in found]
    if missing:
        wanted = {"image": "jpg", "label": "cls"}.get(missing[0], "npy") if kind == "image" else f"{missing[0]}.npy"
        raise DatasetError(f"{where} lacks .{wanted}")
    return found


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png")
AWS = "aws"
"""The command by which webdataset's documentation streams shards from S3."""
WEBDATASET = Format(
    "webdataset",
    frozenset(KIND_FIELDS),
    write,
    read,
    problem,
    smallest_lane,
    sequential=True,
    options={"shard_samples": int},
    sample_overhead_bytes=4096,
    digests_files=True,
    reads="calls",
    layout="tar",
    from_buckets=True,
    stock=StockReader(
        "benchsuite.storage.stock.tar:STOCK",
        "pip install 'benchsuite[formats]'",
        "webdataset",
        BucketClient(AWS, "install the AWS CLI, or pip install 'benchsuite[s3-stock]'", is_command=True),
    ),
    dali_kinds=frozenset({"image"}),
    advised_kinds=frozenset(KIND_FIELDS) - {"tokens"},
)
