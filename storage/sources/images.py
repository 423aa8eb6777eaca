"""Images that users have as files: a folder flat or one folder per class; and what makes an image whole."""

import io
import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import simplejpeg

from storage.fields import image_extension, is_image
from storage.sample import DatasetError, Sample
from storage.sources.source import Keys, Request, Source, reason, sample_key, total_size, walk, whole

JPEG_SUFFIXES = {".jpg", ".jpeg"}
IMAGE_SUFFIXES = {*JPEG_SUFFIXES, ".png"}
JPEG_END = b"\xff\xd9"
MAX_CLASS = 1 << 31


def find_images(path: Path, inside: list[Path]) -> list[Path]:
    """JPEG and PNG files of a folder, flat or one folder per class, in sorted order; links to either are followed.

    Raises:
        DatasetError: they are both flat and in folders, the path is an image itself, or a link leads nowhere or back.
    """
    flat = [found for found in inside if found.suffix.lower() in IMAGE_SUFFIXES]
    if inside == [path]:
        if flat:
            raise DatasetError(f"{path}: Not a directory; images are read from a folder")
        return []
    above = frozenset({os.path.realpath(path)})
    nested = [
        found
        for folder in inside
        if folder.is_dir() and folder not in flat
        for found in sorted(walk(folder, above))
        if found.suffix.lower() in IMAGE_SUFFIXES
    ]
    if flat and nested:
        raise DatasetError(f"{path}: images both flat ({flat[0].name}) and in folders ({nested[0].parent.name}/)")
    lost = next((entry for entry in inside if not (flat or entry.exists())), None)
    if nested and lost:
        raise DatasetError(f"{lost}: a link to nothing; mend it, or remove it if no class is meant")
    return flat or nested


def open_images(paths: list[Path], request: Request) -> Source:
    """Images of a folder as they came; a class per top folder, class 0 where it is flat."""
    return Source(len(paths), total_size(paths), _folder_samples(request.path, paths))


def _folder_samples(source: Path, paths: list[Path]) -> Iterator[Sample]:
    parts = [path.relative_to(source).parts for path in paths]
    classes = {name: number for number, name in enumerate(sorted({part[0] for part in parts if len(part) > 1}))}
    labels = [classes[part[0]] if len(part) > 1 else 0 for part in parts]
    keys = Keys("file")
    return whole(
        partial(_file_sample, path, sample_key(path.relative_to(source)), label, keys)
        for path, label in zip(paths, labels, strict=True)
    )


def _file_sample(path: Path, key: str, label: int, keys: Keys) -> Sample:
    if not key.isascii() and key != key.encode(errors="replace").decode():
        raise DatasetError(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it")
    keys.take(key, path)
    try:
        image = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    check_jpeg(image, path) if path.suffix.lower() in JPEG_SUFFIXES else check_png(image, path)
    return Sample(key, {"image": image, "label": str(label).encode()}, source=str(path))


def image_sample(key: str, image: bytes, label: int, where: str, source: Path) -> Sample:
    """A sample from a container: a whole JPEG or PNG, and a class.

    Raises:
        DatasetError: the bytes are not that, or the class is no number that a class can have.
    """
    if not is_image(image):
        raise DatasetError(f"{where}: neither a JPEG nor a PNG")
    check_png(image, where) if image_extension(image) == "png" else check_jpeg(image, where)
    if not 0 <= label < MAX_CLASS:
        raise DatasetError(f"{where}: label {label}; a class is a number from 0 on")
    return Sample(key, {"image": image, "label": str(label).encode()}, source=str(source))


def check_jpeg(image: bytes, where: object) -> None:
    """Refuse what is not a whole JPEG.

    Raises:
        DatasetError: with what is wrong with it.
    """
    try:
        simplejpeg.decode_jpeg_header(image)
        if not image.rstrip(b"\0").endswith(JPEG_END):
            simplejpeg.decode_jpeg(image, "RGB")
    except ValueError as error:
        raise DatasetError(f"{where}: not a whole JPEG: {error}") from error


def check_png(image: bytes, where: object) -> None:
    """Refuse what is not a whole PNG: every chunk is there, with the checksum that it gives.

    Raises:
        DatasetError: with what is wrong with it.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
            opened.verify()
    except UnidentifiedImageError:
        raise DatasetError(f"{where}: not a whole PNG: it does not begin as one") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise DatasetError(f"{where}: not a whole PNG: {reason(error)}") from error
