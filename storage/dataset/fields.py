"""What samples of each kind consist of, and how their fields are named in files (no torch)."""

from collections.abc import Mapping

import numpy as np

from benchsuite.storage.dataset.manifest import FieldInfo
from benchsuite.storage.dataset.sample import Array, Sample, Value
from benchsuite.storage.errors import DatasetError

MLM_SHAPES: Mapping[str, str] = {
    "input_ids": "seq_len",
    "segment_ids": "seq_len",
    "masked_lm_positions": "max_predictions",
    "masked_lm_ids": "max_predictions",
    "next_sentence_label": "",
}
"""BERT's fields, and the parameter that says how long each is; nothing for single numbers."""
MLM_FIELDS = tuple(MLM_SHAPES)
MLM_DTYPES: Mapping[str, str] = {"segment_ids": "int8", "next_sentence_label": "int8"}
"""What BERT's fields are stored as; those that are not named, as int32."""
LIMITS: Mapping[str, str | int] = {
    "tokens": "vocab_size",
    "input_ids": "vocab_size",
    "segment_ids": 2,
    "masked_lm_positions": "seq_len",
    "masked_lm_ids": "vocab_size",
    "next_sentence_label": 2,
}
"""What the integers of a field stay below, from 0 on: a number, or the parameter that says it."""
KIND_FIELDS: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "label"),
    "volume": ("image", "label"),
    "mlm": MLM_FIELDS,
    "tokens": ("tokens",),
}
"""Fields of each sample kind. image: a JPEG or PNG, and a class in digits; volume: float32 and uint8 of one shape
(1, D, H, W); mlm: BERT's (seq_len,), (seq_len,), (max_predictions,) twice and (); tokens: (seq_len + 1,)."""
RECORD_KINDS = frozenset({"mlm", "tokens"})
"""Kinds whose fields have the same shapes in every sample."""
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def image_extension(image: Value) -> str:
    """`png` or `jpg`, by the first bytes."""
    return "png" if bytes(image[:8]) == _PNG else "jpg"


def is_image(value: Value) -> bool:
    """Whether encoded bytes begin as a JPEG or PNG does."""
    return bytes(value[:8]) == _PNG or bytes(value[:3]) == _JPEG


def array(sample: Sample, name: str) -> Array:
    """A field that must be an array.

    Raises:
        DatasetError: it is missing or is something else.
    """
    value = sample.fields.get(name)
    if not isinstance(value, np.ndarray):
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: no array {name!r} in it")
    return value


def encoded(sample: Sample, name: str) -> bytes | memoryview:
    """A field that must be encoded bytes.

    Raises:
        DatasetError: it is missing or is an array.
    """
    value = sample.fields.get(name)
    if value is None or isinstance(value, np.ndarray):
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: no encoded {name!r} in it")
    return value


def limit_of(name: str, params: Mapping[str, int]) -> int | None:
    """What the integers of a field stay below; None where nothing says it."""
    said = LIMITS.get(name)
    return params.get(said) if isinstance(said, str) else said


def outside(name: str, values: Array, params: Mapping[str, int]) -> str | None:
    """Which integer of a field no table of the model has a row for, by `LIMITS`, or None."""
    limit = limit_of(name, params)
    if limit is None or not values.size:
        return None
    largest, smallest = int(values.max()), int(values.min())
    if smallest >= 0 and largest < limit:
        return None
    said = LIMITS[name]
    needed = f"0..{limit - 1}" + (f" ({said} {limit})" if isinstance(said, str) else "")
    return f"{name} holds {largest if largest >= limit else smallest}, needed: {needed}"


def record(sample: Sample) -> Array:
    """All fields of a sample as one array: the field itself where it is the only one, else a structured scalar."""
    arrays = {name: array(sample, name) for name in sample.fields}
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    dtype = np.dtype([(name, value.dtype, value.shape) for name, value in arrays.items()])
    packed = np.zeros((), dtype)
    for name, value in arrays.items():
        packed[name] = value
    return packed


def unpack(packed: Array, names: tuple[str, ...]) -> dict[str, Array]:
    """The fields of a `record`."""
    if len(names) == 1:
        return {names[0]: packed}
    if packed.dtype.names is None:
        raise ValueError(f"not a record of {', '.join(names)}")
    return {name: np.asarray(packed[name]) for name in packed.dtype.names}


def field_infos(kind: str, sample: Sample, varies: bool) -> list[FieldInfo]:
    """What the manifest says of a kind's fields, from one of its samples."""
    if kind == "image":
        coding = {"jpg": "jpeg"}.get(image_extension(encoded(sample, "image")), "png")
        return [FieldInfo(name="image", dtype=coding), FieldInfo(name="label", dtype="int64", shape=[])]
    return [
        FieldInfo(name=name, dtype=value.dtype.name, shape=None if varies else list(value.shape))
        for name, value in sample.fields.items()
        if isinstance(value, np.ndarray)
    ]
