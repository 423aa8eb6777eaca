"""TFRecord files that users have: ImageNet's features, those of NVIDIA's UNet3D, and BERT's pre-training samples."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchsuite.storage.dataset.fields import MLM_FIELDS
from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.token_samples import kept_params, mlm_bytes
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.tf_example import IMAGE, LABEL, Feature, bytes_of, features_of, integers_of, volume_of
from benchsuite.storage.formats.tfrecord import count_records, damaged, framed
from benchsuite.storage.sources.images import image_sample
from benchsuite.storage.sources.sequences import mlm_sample
from benchsuite.storage.sources.source import Keys, Request, Source, ends_early, nothing, sample_key, total_size, whole
from benchsuite.storage.sources.volumes import volume_sample

KEYS = ("key", "image/filename", "file_name")
SYNSET = "image/class/synset"
"""The feature beside which labels count from 1: tensorflow/models, build_imagenet_data.py."""
TFDS = ("image", "label")
"""Image and class as TensorFlow Datasets writes them."""
Features = Mapping[str, Feature]
Make = Callable[[str, Features, str, Path], Sample]
"""Makes a sample of its key, its features, where they stand, and the file."""
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


def _open(paths: list[Path], request: Request, make: Make) -> Source:
    """Samples of files, counted by stepping from record to record."""
    counts: dict[Path, int] = {}
    for path in paths:
        with told(path):
            counts[path], trouble, byte = count_records(path)
        if trouble:
            where = f"at byte {byte}, in record {counts[path]}" if byte else "at byte 0: is it a TFRecord file?"
            request.leave_out(ends_early(path, trouble, counts[path], "record", where))
    count = sum(counts.values())
    if not count:
        raise nothing(request.path, request.kind, "records in the TFRecord files")
    return Source(count, total_size(paths), _samples(counts, request, make), kept_params(request.params))


def _samples(counts: Mapping[Path, int], request: Request, make: Make) -> Iterator[Sample]:
    keys = Keys("record")

    def sample(payload: Any, is_whole: bool, number: int, row: int, path: Path) -> Sample:
        where = f"{path}: record {number}"
        if not is_whole:
            raise damaged(path, number)
        found = features_of(payload, where)
        return make(keys.take(sample_key(_key(found, where)) or f"{row:08d}", where), found, where, path)

    return whole((partial(sample, *record) for record in _records(counts)), request.skips)


def _key(found: Features, where: str) -> str:
    """The sample's name; empty where no feature gives one."""
    for name in KEYS:
        if name in found:
            with told(f"{where}: {name}", ValueError):
                return str(bytes_of(found, name, where), "utf-8")
    return ""


def _records(counts: Mapping[Path, int]) -> Iterator[tuple[Any, bool, int, int, Path]]:
    """So many first records of each file: content, whether it is whole, number in its file and in all, file."""
    row = 0
    for path, count in counts.items():
        with LocalFile(path) as file:
            for number, (payload, is_whole) in enumerate(islice(framed(file), count)):
                yield payload, is_whole, number, row, path
                row += 1


def open_images(paths: list[Path], request: Request) -> Source:
    """Images with ImageNet's features or TensorFlow Datasets'; classes that ImageNet counts from 1 then begin at 0."""
    return _open(paths, request, _image)


def _image(key: str, found: Features, where: str, path: Path) -> Sample:
    names = TFDS if TFDS[0] in found and IMAGE not in found else (IMAGE, LABEL)
    image, labels = bytes(bytes_of(found, names[0], where)), integers_of(found, names[1], where)
    if len(labels) > 1:
        raise DatasetError(f"{where}: feature {names[1]} holds {len(labels)} classes; images of one class are read")
    label = int(labels[0])
    if SYNSET in found:
        if label == 0:
            raise DatasetError(f"{where}: label 0 beside {SYNSET}, where labels count from 1")
        label -= 1
    return image_sample(key, image, label, where, path)


def open_volumes(paths: list[Path], request: Request) -> Source:
    """Volumes with the features X, X_shape, Y, Y_shape: float32 and uint8."""
    return _open(paths, request, _volume)


def _volume(key: str, found: Features, where: str, path: Path) -> Sample:
    arrays = volume_of(found, where)
    return volume_sample(key, arrays["image"], arrays["label"], where, path)


def open_mlm(paths: list[Path], request: Request) -> Source:
    """BERT's pre-training samples, with the features of Google's, NVIDIA's and MLPerf's tools."""

    def sample(key: str, found: Features, where: str, path: Path) -> Sample:
        label = "next_sentence_label"
        names = {name: name for name in MLM_FIELDS} | ({label: f"{label}s"} if f"{label}s" in found else {})
        raw = {name: integers_of(found, stored, where) for name, stored in names.items()}
        return mlm_sample(key, raw, request.params, where, path)

    source = _open(paths, request, sample)
    return replace(source, size_bytes=(source.count or 0) * mlm_bytes(request.params))
