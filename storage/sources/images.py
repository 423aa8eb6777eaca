"""Images that users have as files: a folder flat or one folder per class; and what makes an image whole."""

import io
import os
import struct
import zlib
from functools import partial
from pathlib import Path

import simplejpeg

from benchsuite.storage.dataset.fields import image_extension, is_image
from benchsuite.storage.dataset.problems import Problems
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError, reason, told
from benchsuite.storage.sources.classes import NO_IMAGES, classes_of, refuse_parts
from benchsuite.storage.sources.source import Keys, Request, Source, sample_key, total_size, walk, whole

JPEG_SUFFIXES = {".jpg", ".jpeg"}
IMAGE_SUFFIXES = {*JPEG_SUFFIXES, ".png"}
OTHER_SUFFIXES = {".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".pgm", ".pnm", ".ppm", ".tga", ".tif", ".tiff"} | {
    *(".avif", ".heic", ".heif", ".jxl", ".webp")
}
"""Suffixes of images that are not read: they are refused where they lie beside those that are."""
ALLOWED = ".jpg, .jpeg, .png"
MAX_CLASS = 1 << 31
_SIGNATURE_BYTES = 8
_CHUNK, _CRC_BYTES = struct.Struct(">I4s"), 4
_HEAD = struct.Struct(">IIBB2xB")
"""The head of a PNG: width, height, bits of a channel, sort of colour, whether interlaced."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Channels by sort of colour: grey, RGB, palette, grey and alpha, RGBA."""
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The first column and row of each pass of an interlaced PNG, and the steps to the next (PNG specification, 8.2)."""


def find_images(path: Path, inside: list[Path]) -> list[Path]:
    """JPEG and PNG files of a folder, flat or one folder per class, in sorted order; links to either are followed.

    Raises:
        DatasetError: they are both flat and in folders, the path is an image itself, a link leads nowhere or back, or
            something would be left out: images of other sorts, a class folder without images; or its folders are no
            classes.
    """
    flat = [found for found in inside if found.suffix.lower() in IMAGE_SUFFIXES]
    if inside == [path]:
        if flat:
            raise DatasetError(f"{path}: Not a directory; images are read from a folder")
        return []
    above = frozenset({os.path.realpath(path)})
    folders = {folder: sorted(walk(folder, above)) for folder in inside if folder.is_dir() and folder not in flat}
    below = [found for files in folders.values() for found in files]
    nested = [found for found in below if found.suffix.lower() in IMAGE_SUFFIXES]
    if flat and nested:
        raise DatasetError(f"{path}: images both flat ({flat[0].name}) and in folders ({nested[0].parent.name}/)")
    lost = next((entry for entry in inside if not (flat or entry.exists())), None)
    if nested and lost:
        raise DatasetError(f"{lost}: a link to nothing; mend it, or remove it if no class is meant")
    if flat or nested:
        _refuse_left_out([*(found for found in inside if found not in folders), *below], folders if nested else {})
        _refuse_no_classes(path, nested)
    return flat or nested


def _refuse_left_out(files: list[Path], classes: dict[Path, list[Path]]) -> None:
    """Refuse images that no reader reads, and class folders without images; hidden files are not meant.

    Raises:
        DatasetError: which ones.
    """
    problems = Problems()
    for file in files:
        if not file.name.startswith(".") and file.suffix.lower() in OTHER_SUFFIXES:
            problems.add(DatasetError(f"{file}: images of this sort are not read; allowed: {ALLOWED}"))
    for folder, inside in classes.items():
        if not any(found.suffix.lower() in IMAGE_SUFFIXES | OTHER_SUFFIXES for found in inside):
            problems.add(DatasetError(f"{folder}: {NO_IMAGES}"))
    problems.tell()


def _refuse_no_classes(path: Path, nested: list[Path]) -> None:
    """Refuse folders that are parts of a dataset, or one that holds the class folders.

    Raises:
        DatasetError: where the classes are.
    """
    folders = {image.parent for image in nested}
    classes = classes_of(str(folder.relative_to(path)) for folder in folders)
    if classes.depth and len(classes.numbers) > 1:
        above = Path(*next(iter(folders)).relative_to(path).parts[: classes.depth])
        what = f"all images lie in {above}/, whose folders are the classes"
        raise DatasetError(f"{path}: {what}: give {path / above}")
    refuse_parts(classes, path, f"give one, as {path / next(iter(classes.numbers), '')}")


def open_images(paths: list[Path], request: Request) -> Source:
    """Images of a folder as they came; a class per top folder, class 0 where it is flat."""
    names = [str(path.relative_to(request.path)) for path in paths]
    classes, keys = classes_of(name.rpartition("/")[0] for name in names), Keys("file")
    makers = (
        partial(_file_sample, path, sample_key(name), classes.of(name), keys)
        for path, name in zip(paths, names, strict=True)
    )
    return Source(len(paths), total_size(paths), whole(makers))


def _file_sample(path: Path, key: str, label: int, keys: Keys) -> Sample:
    if not key.isascii() and key != key.encode(errors="replace").decode():
        raise DatasetError(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it")
    keys.take(key, path)
    with told(path):
        image = path.read_bytes()
    is_jpeg = image_extension(image) == "jpg" if is_image(image) else path.suffix.lower() in JPEG_SUFFIXES
    check_jpeg(image, path) if is_jpeg else check_png(image, path)
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
    """Refuse what is not a whole JPEG: every coefficient is decoded, and what libjpeg warns of is refused.

    It costs about 1 ms for an image of 100 KB; that it is decoded to a small grey image saves a quarter.

    Raises:
        DatasetError: with what is wrong with it.
    """
    try:
        simplejpeg.decode_jpeg_header(image)
        simplejpeg.decode_jpeg(image, "GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1)
    except ValueError as error:
        raise DatasetError(f"{where}: not a whole JPEG: {error}") from error


def check_png(image: bytes, where: object) -> None:
    """Refuse what is not a whole PNG: every chunk is there, with the checksum that it gives, and all pixels decode.

    It costs about 20 ms for each MB.

    Raises:
        DatasetError: with what is wrong with it.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
            opened.verify()
        with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
            opened.load()
        _refuse_missing_rows(image)
    except UnidentifiedImageError:
        raise DatasetError(f"{where}: not a whole PNG: it does not begin as one") from None
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DatasetError(f"{where}: not a whole PNG: {reason(error)}") from error


def _refuse_missing_rows(png: bytes) -> None:
    """Refuse a PNG whose compressed pixels end whole and too early: decoders leave the rest black.

    Raises:
        ValueError: how many bytes of rows are there, and how many are needed.
    """
    needed = _row_bytes(*_HEAD.unpack_from(png, _SIGNATURE_BYTES + _CHUNK.size))
    unpack, found, place = zlib.decompressobj(), 0, _SIGNATURE_BYTES
    while place < len(png) and found < needed:
        size, name = _CHUNK.unpack_from(png, place)
        start = place + _CHUNK.size
        if name == b"IDAT":
            found += len(unpack.decompress(png[start : start + size], needed - found))
        place = start + size + _CRC_BYTES
    if found < needed:
        raise ValueError(f"its rows have {found} bytes, {needed} are needed: truncated")


def _row_bytes(width: int, height: int, depth: int, color: int, interlaced: int) -> int:
    """Bytes of a PNG's unpacked rows, each behind a byte that says how it is filtered (PNG specification, 7.2, 9)."""
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - left) // right), -(-(height - top) // down)) for left, top, right, down in passes]
    return sum(rows * (1 + -(-columns * depth * _CHANNELS[color] // 8)) for columns, rows in sizes if columns > 0)
