"""Format `tfrecord`: shards of `tf.train.Example` records with masked CRC-32C checksums, without TensorFlow.

Features are named as is customary, so that others' readers work: `image/encoded` and `image/class/label` (ImageNet),
`X`, `X_shape`, `Y`, `Y_shape` (NVIDIA's UNet3D), BERT's pre-training features, `tokens`; and `key`. Beside each shard
lies an index with the place and size of every record, in the text form that DALI reads.

The record: length (uint64), its CRC (uint32), the Example, its CRC (uint32), little-endian; a CRC is masked by rotation
and a constant (tensorflow.org, "TFRecord and tf.train.Example").
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from storage.fields import KIND_FIELDS, array, encoded
from storage.format import Dataset, Format, IndexRow, Lane, data_file, dealt, index_row
from storage.sample import Allocate, DatasetError, Sample, Value, fresh
from storage.shards import batched, first_rows, mixed, problem, shards, smallest_lane

DEFAULT_SHARD_SAMPLES = 128
SUFFIX = ".tfrecord"
IMAGE, LABEL = "image/encoded", "image/class/label"
VOLUME: Mapping[str, tuple[str, str]] = {"image": ("X", "<f4"), "label": ("Y", "|u1")}
DTYPES: Mapping[str, str] = {"segment_ids": "int8", "next_sentence_label": "int8"}
"""Integers of Examples are 64 bits wide; where no manifest says more, fields are of these types, others int32."""
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8


def masked_crc(content: Any) -> int:
    """TFRecord's checksum of bytes."""
    from crc32c import crc32c

    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@cache
def _example() -> Callable[[], Any]:
    """The message class tf.train.Example (tensorflow/core/example/example.proto), made at run time."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(name="benchsuite_example.proto", package="benchsuite", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str | None]) -> Any:
        made = proto.message_type.add(name=name)
        for number, (field, label, kind, type_name) in enumerate(fields, 1):
            made.field.add(name=field, number=number, label=label, type=kind, type_name=type_name)
        return made

    message("BytesList", ("value", 3, 12, None))
    message("FloatList", ("value", 3, 2, None))
    message("Int64List", ("value", 3, 3, None))
    lists = [
        (name, 1, 11, f".benchsuite.{kind}")
        for name, kind in (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    ]
    feature = message("Feature", *lists)
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", 3, 11, ".benchsuite.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".benchsuite.Feature")
    message("Example", ("features", 1, 11, ".benchsuite.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    found: Callable[[], Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("benchsuite.Example"))
    return found


def encode(sample: Sample) -> bytes:
    """A sample as a serialised Example."""
    example = _example()()
    feature = example.features.feature
    feature["key"].bytes_list.value.append(sample.key.encode())
    if "image" not in sample.fields:
        for name in sample.fields:
            feature[name].int64_list.value.extend(array(sample, name).reshape(-1).tolist())
    elif isinstance(sample.fields["image"], np.ndarray):
        for field, (name, dtype) in VOLUME.items():
            values = array(sample, field).astype(np.dtype(dtype), copy=False)
            feature[name].bytes_list.value.append(values.tobytes())
            feature[f"{name}_shape"].int64_list.value.extend(values.shape)
    else:
        feature[IMAGE].bytes_list.value.append(bytes(encoded(sample, "image")))
        feature[LABEL].int64_list.value.append(int(bytes(encoded(sample, "label"))))
    return bytes(example.SerializeToString(deterministic=True))


def decode(kind: str, payload: Any, where: str, dtypes: Mapping[str, str] = DTYPES) -> tuple[str, dict[str, Value]]:
    """Key and fields of a sample of this kind, from a serialised Example.

    Raises:
        DatasetError: not an Example, or a feature is missing or of another type.
    """
    from google.protobuf.message import DecodeError

    example = _example()()
    try:
        example.ParseFromString(memoryview(payload))
    except DecodeError as error:
        raise DatasetError(f"{where}: not a tf.train.Example: {error}") from error
    feature = example.features.feature
    key = feature["key"].bytes_list.value[0].decode(errors="replace") if "key" in feature else ""
    try:
        return key, _fields(kind, feature, dtypes)
    except (IndexError, ValueError) as error:
        raise DatasetError(f"{where}: features {sorted(feature)} are not those of {kind} samples: {error}") from error


def _fields(kind: str, feature: Any, dtypes: Mapping[str, str]) -> dict[str, Value]:
    if kind == "image":
        label = str(feature[LABEL].int64_list.value[0]).encode()
        return {"image": feature[IMAGE].bytes_list.value[0], "label": label}
    if kind == "volume":
        return {
            field: np.frombuffer(feature[name].bytes_list.value[0], np.dtype(dtype)).reshape(
                feature[f"{name}_shape"].int64_list.value
            )
            for field, (name, dtype) in VOLUME.items()
        }
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        values = feature[name].int64_list.value
        if not len(values):
            raise ValueError(f"no {name}")
        flat = np.array(values, dtype=dtypes.get(name, "int32"))
        fields[name] = flat.reshape(()) if name == "next_sentence_label" else flat
    return fields


def write(folder: Path, samples: Iterable[Sample], shard_samples: int = DEFAULT_SHARD_SAMPLES) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each (the last may be shorter), and their indices."""
    if shard_samples < 1:
        raise DatasetError(f"shard_samples must be at least 1. Found: {shard_samples}")
    for number, run in enumerate(batched(samples, shard_samples)):
        name = f"shard-{number:06d}{SUFFIX}"
        with (folder / name).open("wb") as file, (folder / f"{name}.idx").open("w") as index:
            for sample in run:
                payload = encode(sample)
                index.write(f"{file.tell()} {_HEADER.size + len(payload) + _CRC.size}\n")
                length = struct.pack("<Q", len(payload))
                file.write(length + _CRC.pack(masked_crc(length)))
                file.write(payload)
                file.write(_CRC.pack(masked_crc(payload)))
                yield index_row(sample, name)


def records(file: BinaryIO, path: Path, allocate: Allocate = fresh) -> Iterator[Any]:
    """The records of an open shard, checksums verified.

    Raises:
        DatasetError: a checksum is wrong, or the file ends inside a record.
    """
    number = 0
    while head := file.read(_HEADER.size):
        where = f"{path}: record {number}"
        if len(head) < _HEADER.size:
            raise DatasetError(f"{where}: the file ends inside it: truncated")
        length, crc = _HEADER.unpack(head)
        if masked_crc(head[:8]) != crc:
            raise DatasetError(f"{where}: the CRC of its length is wrong: damaged")
        payload = allocate("record", length)[:length]
        if file.readinto(payload) != length or len(tail := file.read(_CRC.size)) < _CRC.size:  # type: ignore[attr-defined]
            raise DatasetError(f"{where}: the file ends inside it: truncated")
        if masked_crc(payload) != _CRC.unpack(tail)[0]:
            raise DatasetError(f"{where}: its CRC is wrong: damaged")
        yield payload
        number += 1


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    rows = first_rows(dataset)
    numbers = dealt(len(shards(dataset.manifest)), lane)
    samples = (sample for number in numbers for sample in _read_shard(dataset, int(number), rows, lane.allocate))
    return mixed(samples, dataset.manifest, lane)


def _read_shard(dataset: Dataset, number: int, rows: list[int], allocate: Allocate) -> Iterator[Sample]:
    path = data_file(dataset, shards(dataset.manifest)[number].path)
    row, end = rows[number], rows[number + 1]
    dtypes = {info.name: info.dtype for info in dataset.manifest.fields}
    with path.open("rb") as file:
        for payload in records(file, path, allocate):
            key, fields = decode(dataset.manifest.kind, payload, f"{path}: record {row - rows[number]}", dtypes)
            if row >= end or key != dataset.key(row):
                raise DatasetError(f"{path}: record {row - rows[number]}: {key!r} is not the one that the index names")
            yield Sample(key, fields, row, str(path))
            row += 1
    if row != end:
        raise DatasetError(f"{path}: {end - row} samples short of the {end - rows[number]} in the index")


TFRECORD = Format(
    "tfrecord",
    frozenset(KIND_FIELDS),
    write,
    read,
    problem,
    smallest_lane,
    file_per_sample=False,
    sequential=True,
    options={"shard_samples": int},
)
