"""TFRecord files that users have: ImageNet's features, those of NVIDIA's UNet3D, and BERT's pre-training samples."""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.sample import Array, Sample
from benchsuite.storage.dataset.token_samples import mlm_bytes
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tf_example import IMAGE, LABEL, VOLUME, Feature, features
from benchsuite.storage.formats.tfrecord import masked_crc, records
from benchsuite.storage.sources.images import image_sample
from benchsuite.storage.sources.sequences import MLM_SHAPES, mlm_sample
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    file_size,
    name_key,
    nothing,
    told,
    total_size,
    whole,
)
from benchsuite.storage.sources.volumes import volume_sample

KEYS = ("key", "image/filename", "file_name")
SYNSET = "image/class/synset"
"""Beside it labels count from 1: tensorflow/models, build_imagenet_data.py."""
TFDS = ("image", "label")
"""Image and class as TensorFlow Datasets writes them."""
_HEAD, _TAIL_BYTES = struct.Struct("<QI"), 4
_INDEX_SUFFIXES = (".idx", ".index")
_SHARD = re.compile(r"-of-\d+")
_OTHERS = re.compile(r"\.(tar|h5|hdf5|mdb|lmdb|txt|npy|npz|nii|bin|jpe?g|png|parquet|json|csv|zip|safetensors)(\.|$)")


def find_tfrecords(path: Path, inside: list[Path]) -> list[Path]:
    """Files with .tfrecord in their name, or `-of-` and a number as in `train-00000-of-01024`; not their indices."""
    return [found for found in inside if _is_tfrecord(found.name.lower()) and not found.is_dir()]


def _is_tfrecord(name: str) -> bool:
    if name.endswith(_INDEX_SUFFIXES):
        return False
    return ".tfrecord" in name or (_SHARD.search(name) is not None and not _OTHERS.search(name))


def _open(paths: list[Path], request: Request, make: Callable[[str, "_Features", Request], Sample]) -> Source:
    """Samples of files, counted by stepping from record to record."""
    count = sum(map(_num_records, paths))
    if not count:
        raise nothing(request.path, request.kind, "records in the TFRecord files")
    return Source(count, total_size(paths), _samples(paths, request, make), request.kept_params)


def _num_records(path: Path) -> int:
    """Records of a file.

    Raises:
        DatasetError: it is not a TFRecord file, or ends inside a record.
    """
    size, place, count = file_size(path), 0, 0
    with told(path, OSError), path.open("rb") as file:
        while place < size:
            file.seek(place)
            head = file.read(_HEAD.size)
            if count == 0 and head[:2] == b"\x1f\x8b":
                raise DatasetError(f"{path}: compressed by gzip as a whole; unpack it first")
            if len(head) == _HEAD.size and masked_crc(head[:8]) != _HEAD.unpack(head)[1]:
                raise DatasetError(f"{path}: record {count}: the CRC of its length is wrong: damaged, or no TFRecord")
            place += _HEAD.size + int.from_bytes(head[:8], "little") + _TAIL_BYTES
            if len(head) < _HEAD.size or place > size:
                raise DatasetError(f"{path}: record {count}: the file ends inside it: truncated")
            count += 1
    return count


class _Features:
    """The features of one record."""

    def __init__(self, payload: Any, where: str, path: Path) -> None:
        self.where, self.path = where, path
        with told(f"{where}: not a tf.train.Example", IndexError, ValueError):
            self._features = features(memoryview(payload).cast("B"))

    def has(self, name: str) -> bool:
        """Whether there is a feature of this name."""
        return name in self._features

    def bytes(self, name: str) -> memoryview:
        """The bytes that a feature holds.

        Raises:
            DatasetError: there is no such feature, or it holds something else.
        """
        values = self._values(name)
        if not isinstance(values, list):
            raise DatasetError(f"{self.where}: feature {name} holds no bytes")
        return values[0]

    def integers(self, name: str) -> Array:
        """The integers that a feature holds.

        Raises:
            DatasetError: there is no such feature, or it holds something else.
        """
        values = self._values(name)
        if isinstance(values, list):
            raise DatasetError(f"{self.where}: feature {name} holds no integers")
        return values

    def _values(self, name: str) -> Feature:
        if name not in self._features:
            raise DatasetError(f"{self.where}: no feature {name}; found {', '.join(sorted(self._features)) or 'none'}")
        if not len(self._features[name]):
            raise DatasetError(f"{self.where}: feature {name} is empty")
        return self._features[name]

    def key(self) -> str:
        """The sample's name; empty where no feature gives one."""
        for name in KEYS:
            if self.has(name):
                with told(f"{self.where}: {name}", ValueError):
                    return str(self.bytes(name), "utf-8")
        return ""


def _samples(
    paths: list[Path], request: Request, make: Callable[[str, _Features, Request], Sample]
) -> Iterator[Sample]:
    keys = Keys("record")

    def sample(payload: Any, number: int, row: int, path: Path) -> Sample:
        found = _Features(payload, f"{path}: record {number}", path)
        key = keys.take(name_key(found.key()) or f"{row:08d}", found.where)
        return make(key, found, request)

    return whole(partial(sample, *record) for record in _records(paths))


def _records(paths: list[Path]) -> Iterator[tuple[Any, int, int, Path]]:
    """The records of all files: content, number in its file and in all, file."""
    row = 0
    for path in paths:
        with told(path, OSError):
            file = path.open("rb")
        with file:
            for number, payload in enumerate(records(file, path)):
                yield payload, number, row, path
                row += 1


def open_images(paths: list[Path], request: Request) -> Source:
    """Images with ImageNet's features or TensorFlow Datasets'; classes that ImageNet counts from 1 then begin at 0."""
    return _open(paths, request, _image)


def _image(key: str, found: _Features, request: Request) -> Sample:
    names = TFDS if found.has(TFDS[0]) and not found.has(IMAGE) else (IMAGE, LABEL)
    image, label = bytes(found.bytes(names[0])), int(found.integers(names[1])[0])
    if found.has(SYNSET):
        if label == 0:
            raise DatasetError(f"{found.where}: label 0 beside {SYNSET}, where labels count from 1")
        label -= 1
    return image_sample(key, image, label, found.where, found.path)


def open_volumes(paths: list[Path], request: Request) -> Source:
    """Volumes with the features X, X_shape, Y, Y_shape: float32 and uint8."""
    return _open(paths, request, _volume)


def _volume(key: str, found: _Features, request: Request) -> Sample:
    arrays: list[Array] = []
    for name, dtype in VOLUME.values():
        content, shape = found.bytes(name), found.integers(f"{name}_shape").tolist()
        with told(f"{found.where}: {name} of shape {tuple(shape)}", ValueError):
            arrays.append(np.frombuffer(content, np.dtype(dtype)).reshape(tuple(shape)))
    return volume_sample(key, arrays[0], arrays[1], found.where, found.path)


def open_mlm(paths: list[Path], request: Request) -> Source:
    """BERT's pre-training samples, with the features of Google's, NVIDIA's and MLPerf's tools."""
    source = _open(paths, request, _mlm)
    return replace(source, size_bytes=(source.count or 0) * mlm_bytes(request.params))


def _mlm(key: str, found: _Features, request: Request) -> Sample:
    raw = {}
    for name in MLM_SHAPES:
        stored = "next_sentence_labels" if name == "next_sentence_label" and found.has(f"{name}s") else name
        raw[name] = found.integers(stored)
    return mlm_sample(key, raw, request.params, found.where, found.path)
