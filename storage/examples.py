"""`tf.train.Example`: samples as TFRecords hold them, written with protobuf and read without copying.

Features are named as is customary, so that others' readers work: `image/encoded` and `image/class/label` (ImageNet),
`X`, `X_shape`, `Y`, `Y_shape` (NVIDIA's UNet3D), BERT's pre-training features, `tokens`; and `key`. protobuf's parser
copies large values twice, which takes six times as long as reading them; so records are read by walking their wire
format (protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.fields import KIND_FIELDS, array, encoded
from storage.sample import DatasetError, Sample, Value

IMAGE, LABEL = "image/encoded", "image/class/label"
VOLUME: Mapping[str, tuple[str, str]] = {"image": ("X", "<f4"), "label": ("Y", "|u1")}
DTYPES: Mapping[str, str] = {"segment_ids": "int8", "next_sentence_label": "int8"}
"""Integers of Examples are 64 bits wide; where no manifest says more, fields are of these types, others int32."""
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FEATURES, _ENTRY, _KEY, _FEATURE = 1, 1, 1, 2
_BYTES, _INT64 = 1, 3
Feature = list[memoryview] | npt.NDArray[np.int64]


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


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def _parts(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """The fields of a message: number, wire type, and content (of a number: its bytes)."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == _VARINT:
            _, end = _varint(content, at)
        elif kind == _LEN:
            length, at = _varint(content, at)
            end = at + length
        elif kind in (_I64, _I32):
            end = at + (8 if kind == _I64 else 4)
        else:
            raise ValueError(f"wire type {kind}")
        if end > len(content):
            raise ValueError("a field ends beyond its message")
        yield tag >> 3, kind, content[at:end]
        at = end


def _numbers(packed: memoryview) -> npt.NDArray[np.int64]:
    """Packed varints, all at once."""
    content = np.frombuffer(packed, np.uint8)
    if len(content) and content[-1] >= 128:
        raise ValueError("a number is cut short")
    starts = np.concatenate([[0], np.flatnonzero(content < 128)[:-1] + 1]) if len(content) else np.zeros(0, int)
    lengths = np.diff(np.append(starts, len(content)))
    shifts = 7 * (np.arange(len(content)) - np.repeat(starts, lengths)).astype(np.uint64)
    parts = (content & 127).astype(np.uint64) << shifts
    numbers: npt.NDArray[np.int64] = (
        np.bitwise_or.reduceat(parts, starts).view(np.int64) if len(parts) else parts.view(np.int64)
    )
    return numbers


def features(example: memoryview) -> dict[str, Feature]:
    """The features of an Example by name: lists of bytes, which share its memory, and arrays of integers.

    Raises:
        ValueError: not an Example.
    """
    found: dict[str, Feature] = {}
    for number, _, content in _parts(example):
        for entry, _, pair in _parts(content) if number == _FEATURES else ():
            if entry != _ENTRY:
                continue
            parts = {part: value for part, _, value in _parts(pair)}
            feature = parts.get(_FEATURE)
            if _KEY not in parts or feature is None:
                raise ValueError("a feature without name or value")
            for kind, _, values in _parts(feature):
                if kind == _BYTES:
                    found[bytes(parts[_KEY]).decode()] = [value for _, _, value in _parts(values)]
                elif kind == _INT64:
                    found[bytes(parts[_KEY]).decode()] = _numbers(memoryview(b"".join(v for _, _, v in _parts(values))))
    return found


def decode(kind: str, payload: Any, where: str, dtypes: Mapping[str, str] = DTYPES) -> tuple[str, dict[str, Value]]:
    """Key and fields of a sample of this kind, from a serialised Example whose memory they share.

    Raises:
        DatasetError: not an Example, or a feature is missing or of another type.
    """
    try:
        feature = features(memoryview(payload).cast("B"))
    except (IndexError, ValueError) as error:
        raise DatasetError(f"{where}: not a tf.train.Example: {error}") from error
    try:
        key = bytes(_bytes(feature, "key")).decode(errors="replace") if "key" in feature else ""
        return key, _fields(kind, feature, dtypes)
    except (IndexError, KeyError, ValueError) as error:
        raise DatasetError(f"{where}: features {sorted(feature)} are not those of {kind} samples: {error}") from error


def _bytes(feature: Mapping[str, Feature], name: str) -> memoryview:
    values = feature[name]
    if not isinstance(values, list):
        raise ValueError(f"{name} holds no bytes")
    return values[0]


def _integers(feature: Mapping[str, Feature], name: str) -> npt.NDArray[np.int64]:
    values = feature[name]
    if isinstance(values, list):
        raise ValueError(f"{name} holds no integers")
    return values


def _fields(kind: str, feature: Mapping[str, Feature], dtypes: Mapping[str, str]) -> dict[str, Value]:
    if kind == "image":
        return {"image": _bytes(feature, IMAGE), "label": str(int(_integers(feature, LABEL)[0])).encode()}
    if kind == "volume":
        return {
            field: np.frombuffer(_bytes(feature, name), np.dtype(dtype)).reshape(_integers(feature, f"{name}_shape"))
            for field, (name, dtype) in VOLUME.items()
        }
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        flat = _integers(feature, name).astype(dtypes.get(name, "int32"))
        fields[name] = flat.reshape(()) if name == "next_sentence_label" else flat
    return fields
