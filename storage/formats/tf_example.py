"""`tf.train.Example`: samples as TFRecords hold them, written and read without copying.

Features are named as is customary, so that others' readers work: `image/encoded` and `image/class/label` (ImageNet),
`X`, `X_shape`, `Y`, `Y_shape` (NVIDIA's UNet3D), BERT's pre-training features, `tokens`; and `key`. protobuf's library
copies large values twice, which takes six times as long as reading them; so the wire format
(protobuf.dev/programming-guides/encoding) is walked here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.fields import KIND_FIELDS, MLM_DTYPES, array, encoded
from benchsuite.storage.dataset.sample import Array, Sample, Value, num_bytes
from benchsuite.storage.errors import DatasetError

IMAGE, LABEL = "image/encoded", "image/class/label"
VOLUME: Mapping[str, tuple[str, str]] = {"image": ("X", "<f4"), "label": ("Y", "|u1")}
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FEATURES, _ENTRY, _KEY, _FEATURE, _VALUE = 1, 1, 1, 2, 1
_BYTES, _INT64 = 1, 3
FEW_BYTES = 32
Part = bytes | memoryview
Feature = list[memoryview] | npt.NDArray[np.int64]


def _varint_bytes(value: int) -> bytes:
    """A number as a varint; negative ones as 64-bit two's complement."""
    value &= (1 << 64) - 1
    encoded_bytes = bytearray()
    while value > 127:
        encoded_bytes.append(value & 127 | 128)
        value >>= 7
    encoded_bytes.append(value)
    return bytes(encoded_bytes)


def _field(number: int, parts: list[Part]) -> list[Part]:
    """A field that holds these parts, one after another: a message, or bytes."""
    return [_varint_bytes(number << 3 | _LEN) + _varint_bytes(sum(map(num_bytes, parts))), *parts]


def _entry(name: str, kind: int, values: list[Part]) -> list[Part]:
    """One feature with its name, as a field of Features."""
    feature = _field(_FEATURE, _field(kind, _field(_VALUE, values)))
    return _field(_ENTRY, [*_field(_KEY, [name.encode()]), *feature])


def _integers_entry(name: str, values: Iterable[int]) -> list[Part]:
    return _entry(name, _INT64, [b"".join(map(_varint_bytes, values))])


def encode(sample: Sample) -> list[Part]:
    """A sample as a serialised Example, in parts: large fields are not copied."""
    entries = _entry("key", _BYTES, [sample.key.encode()])
    if "image" not in sample.fields:
        for name in sample.fields:
            entries += _integers_entry(name, array(sample, name).reshape(-1).tolist())
    elif isinstance(sample.fields["image"], np.ndarray):
        for field, (name, dtype) in VOLUME.items():
            values = np.ascontiguousarray(array(sample, field), np.dtype(dtype))
            entries += _entry(name, _BYTES, [values.data.cast("B")])
            entries += _integers_entry(f"{name}_shape", values.shape)
    else:
        entries += _entry(IMAGE, _BYTES, [encoded(sample, "image")])
        entries += _integers_entry(LABEL, [int(bytes(encoded(sample, "label")))])
    return _field(_FEATURES, entries)


def _varint(content: Part, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = content[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for shift in range(7, 64, 7):
        at += 1
        value |= (content[at] & 127) << shift
        if content[at] < 128:
            return value, at + 1
    raise ValueError("a number of more than 64 bits")


def _parts(content: memoryview) -> list[tuple[int, memoryview]]:
    """The fields of a message: number and content (of a number: its bytes)."""
    found: list[tuple[int, memoryview]] = []
    at, size = 0, len(content)
    while at < size:
        tag, at = _varint(content, at)
        if tag & 7 == _LEN:
            length, at = _varint(content, at)
            end = at + length
        else:
            end = _number_end(content, at, tag & 7)
        if end > size:
            raise ValueError("a field ends beyond its message")
        found.append((tag >> 3, content[at:end]))
        at = end
    return found


def _number_end(content: memoryview, at: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(content, at)[1]
    if kind in (_I64, _I32):
        return at + (8 if kind == _I64 else 4)
    raise ValueError(f"wire type {kind}")


def _numbers(packed: bytes) -> npt.NDArray[np.int64]:
    """Packed varints."""
    if packed and packed[-1] >= 128:
        raise ValueError("a number is cut short")
    return _many(packed) if len(packed) > FEW_BYTES else _few(packed)


def _few(packed: bytes) -> npt.NDArray[np.int64]:
    """Packed varints one by one, which is faster for a label or a shape."""
    numbers, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number & (1 << 64) - 1)
    return np.array(numbers, np.uint64).view(np.int64)


def _many(packed: bytes) -> npt.NDArray[np.int64]:
    """Packed varints all at once."""
    content = np.frombuffer(packed, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(content < 128)[:-1] + 1])
    lengths = np.diff(np.append(starts, len(content)))
    shifts = 7 * (np.arange(len(content)) - np.repeat(starts, lengths)).astype(np.uint64)
    parts = (content & 127).astype(np.uint64) << shifts
    numbers: npt.NDArray[np.int64] = np.bitwise_or.reduceat(parts, starts).view(np.int64)
    return numbers


def features(example: memoryview) -> dict[str, Feature]:
    """The features of an Example by name: lists of bytes, which share its memory, and arrays of integers.

    Raises:
        ValueError: not an Example.
    """
    found: dict[str, Feature] = {}
    for number, content in _parts(example):
        for entry, pair in _parts(content) if number == _FEATURES else ():
            if entry != _ENTRY:
                continue
            parts = dict(_parts(pair))
            if _KEY not in parts or _FEATURE not in parts:
                raise ValueError("a feature without name or value")
            for kind, values in _parts(parts[_FEATURE]):
                if kind == _BYTES:
                    found[str(parts[_KEY], "utf-8")] = [value for _, value in _parts(values)]
                elif kind == _INT64:
                    found[str(parts[_KEY], "utf-8")] = _numbers(b"".join(value for _, value in _parts(values)))
    return found


def features_of(payload: Any, where: str) -> dict[str, Feature]:
    """The features of a serialised Example, whose memory they share.

    Raises:
        DatasetError: not an Example.
    """
    try:
        return features(memoryview(payload).cast("B"))
    except (IndexError, ValueError) as error:
        raise DatasetError(f"{where}: not a tf.train.Example: {error}") from error


def decode(kind: str, payload: Any, where: str, dtypes: Mapping[str, str] = MLM_DTYPES) -> tuple[str, dict[str, Value]]:
    """Key and fields of a sample of this kind, from a serialised Example whose memory they share.

    Raises:
        DatasetError: not an Example, or a feature is missing or of another type.
    """
    found = features_of(payload, where)
    key = bytes(bytes_of(found, "key", where)).decode(errors="replace") if "key" in found else ""
    if kind == "image":
        label = integers_of(found, LABEL, where)[0]
        return key, {"image": bytes_of(found, IMAGE, where), "label": str(int(label)).encode()}
    if kind == "volume":
        return key, dict(volume_of(found, where))
    fields: dict[str, Value] = {}
    for name in KIND_FIELDS[kind]:
        flat = integers_of(found, name, where).astype(dtypes.get(name, "int32"))
        fields[name] = flat.reshape(()) if name == "next_sentence_label" else flat
    return key, fields


def bytes_of(found: Mapping[str, Feature], name: str, where: str) -> memoryview:
    """The bytes that a feature holds.

    Raises:
        DatasetError: there is no such feature, or it holds something else.
    """
    values = _values(found, name, where)
    if not isinstance(values, list):
        raise DatasetError(f"{where}: feature {name} holds no bytes")
    return values[0]


def integers_of(found: Mapping[str, Feature], name: str, where: str) -> npt.NDArray[np.int64]:
    """The integers that a feature holds.

    Raises:
        DatasetError: there is no such feature, or it holds something else.
    """
    values = _values(found, name, where)
    if isinstance(values, list):
        raise DatasetError(f"{where}: feature {name} holds no integers")
    return values


def _values(found: Mapping[str, Feature], name: str, where: str) -> Feature:
    if name not in found:
        raise DatasetError(f"{where}: no feature {name}; found {', '.join(sorted(found)) or 'none'}")
    if not len(found[name]):
        raise DatasetError(f"{where}: feature {name} is empty")
    return found[name]


def volume_of(found: Mapping[str, Feature], where: str) -> dict[str, Array]:
    """Image and label of a volume.

    Raises:
        DatasetError: a feature is missing, or shapes and contents do not fit.
    """
    fields = {}
    for field, (name, dtype) in VOLUME.items():
        content, shape = bytes_of(found, name, where), integers_of(found, f"{name}_shape", where).tolist()
        try:
            fields[field] = np.frombuffer(content, np.dtype(dtype)).reshape(shape)
        except ValueError as error:
            raise DatasetError(f"{where}: {name} of shape {tuple(shape)}: {error}") from error
    return fields
