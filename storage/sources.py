"""What users have: folders of images, tars, .npy pairs, NIfTI, HDF5, LMDB, TFRecord, .bin/.idx, text."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import simplejpeg

from storage.sample import DatasetError, Sample

JPEG_SUFFIXES = {".jpg", ".jpeg"}
JPEG_END = b"\xff\xd9"


@dataclass(frozen=True)
class Source:
    """Samples on their way into a dataset."""

    count: int | None
    """How many there are; None where only reading tells."""
    size_bytes: int
    """What they will take on disk, about."""
    samples: Iterator[Sample]
    """In a fixed order; arrays hold until the next one is drawn."""
    params: dict[str, int] = field(default_factory=dict)
    """What the samples are made for: seq_len, max_predictions, vocab_size."""
    notes: dict[str, str | int | float | None] = field(default_factory=dict)
    """For the manifest: where they come from, and what was left out."""


def open_source(path: Path, kind: str, params: Mapping[str, int], tokenizer: str | None = None) -> Source:
    """The samples of this kind in a file or folder.

    Raises:
        DatasetError: nothing there that could be read as such samples.
    """
    paths = _jpeg_paths(path)
    return Source(len(paths), sum(map(_size, paths)), _folder_samples(path, paths))


def sample_key(relative: Path) -> str:
    """A sample's key from its file's path: without suffix, and with nothing that tar readers see a meaning in.

    They take a dot for the start of a suffix, and skip what lies in a folder named `__so__`.
    """
    return re.sub(r"^__([^/]*)__/", r"_\1_/", re.sub(r"[.\s]", "_", str(relative.with_suffix(""))))


def _jpeg_paths(source: Path) -> list[Path]:
    """JPEG files of a folder, flat or one folder per class, in sorted order."""
    try:
        inner = sorted(entry for entry in source.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"{source}: {error.strerror}") from error
    flat = [path for path in inner if path.suffix.lower() in JPEG_SUFFIXES]
    nested = [
        path
        for folder in inner
        if folder.is_dir()
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in JPEG_SUFFIXES
    ]
    if flat and nested:
        raise DatasetError(f"{source}: JPEGs both flat ({flat[0].name}) and in folders ({nested[0].parent.name}/)")
    paths = flat or nested
    if not paths:
        raise DatasetError(f"{source}: no .jpg or .jpeg files, neither flat nor in one folder per class")
    return paths


def _folder_samples(source: Path, paths: list[Path]) -> Iterator[Sample]:
    """Samples of a folder of JPEGs as they came; a class per top folder, class 0 where it is flat."""
    parts = [path.relative_to(source).parts for path in paths]
    classes = {name: number for number, name in enumerate(sorted({part[0] for part in parts if len(part) > 1}))}
    seen: set[str] = set()
    for path, part in zip(paths, parts, strict=True):
        key = sample_key(path.relative_to(source))
        if not key.isascii() and key != key.encode(errors="replace").decode():
            raise DatasetError(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it")
        if key in seen:
            raise DatasetError(f"{path}: another file has the same key {key!r}; rename one of them")
        seen.add(key)
        try:
            image = path.read_bytes()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from error
        _check_jpeg(image, path)
        label = classes[part[0]] if len(part) > 1 else 0
        yield Sample(key, {"image": image, "label": str(label).encode()}, source=str(path))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error


def _check_jpeg(image: bytes, path: Path) -> None:
    try:
        simplejpeg.decode_jpeg_header(image)
        if not image.rstrip(b"\0").endswith(JPEG_END):
            simplejpeg.decode_jpeg(image, "RGB")
    except ValueError as error:
        raise DatasetError(f"{path}: not a whole JPEG: {error}") from error
