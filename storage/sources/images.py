"""Images that users have as files: a folder flat or one folder per class; and what makes an image whole."""

import io
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

import simplejpeg

from benchsuite.storage.dataset.fields import image_extension, is_image
from benchsuite.storage.dataset.problems import Problems
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError, reason, told
from benchsuite.storage.sources.classes import NO_IMAGES, Classes, classes_of, refuse_parts
from benchsuite.storage.sources.labels import BESIDE, FOLDER, Labels, refuse_unread, settled
from benchsuite.storage.sources.source import Keys, Request, Source, entries, sample_key, total_size, walk, whole

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
    """JPEG and PNG files of a folder, flat or one folder per class, in sorted order, and after them all other files.

    Links to files and folders are followed; what is hidden is left out.

    Raises:
        DatasetError: images are both flat and in folders, the path is an image itself, or a link leads nowhere or back.
    """
    flat = [found for found in inside if _is_image_file(found)]
    if inside == [path]:
        if flat:
            raise DatasetError(f"{path}: Not a directory; images are read from a folder")
        return []
    above = frozenset({os.path.realpath(path)})
    folders = {folder: sorted(walk(folder, above)) for folder in inside if folder.is_dir() and folder not in flat}
    below = [found for files in folders.values() for found in files]
    nested = [found for found in below if _is_image_file(found)]
    if flat and nested:
        raise DatasetError(f"{path}: images both flat ({flat[0].name}) and in folders ({nested[0].parent.name}/)")
    lost = next((entry for entry in inside if not (flat or entry.exists())), None)
    if nested and lost:
        raise DatasetError(f"{lost}: a link to nothing; mend it, or remove it if no class is meant")
    if not (flat or nested):
        return []
    files = [*(found for found in inside if found not in folders), *below]
    return [*(flat or nested), *(found for found in files if not _is_image_file(found))]


def _is_image_file(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


@dataclass(frozen=True)
class _File:
    """An image, its path below the source, and the files beside it that may hold its class."""

    path: Path
    name: str
    beside: Mapping[str, Path]

    def contents(self) -> dict[str, bytes]:
        """What the files beside it hold, by suffix."""
        found = {}
        for suffix, path in self.beside.items():
            with told(path):
                found[suffix] = path.read_bytes()
        return found


def open_images(paths: list[Path], request: Request) -> Source:
    """Images of a folder as they came; a class by what lies beside each, else per top folder, class 0 where it is flat.

    Raises:
        DatasetError: something would be left out: images of other sorts, a class folder without images; or folders are
            no classes, or labels are there that are not read.
    """
    files, unread = _with_beside(paths, request.path)
    classes = classes_of(file.name.rpartition("/")[0] for file in files)
    has_cls = any("cls" in file.beside for file in files)
    labels = Labels(classes, has_cls, request.options.label_field)
    looked_at = ((file.name, file.contents(), str(file.path)) for file in files if file.beside)
    labels = settled(labels, looked_at, request.skips is not None)
    _refuse_left_out(files, labels, request)
    if labels.origin == FOLDER:
        _refuse_no_classes(request.path, files, classes)
        refuse_unread(request.path, unread, labels)
    keys = Keys("file")
    makers = (partial(_file_sample, file, labels, keys) for file in files)
    return Source(len(files), total_size(file.path for file in files), whole(makers, request.skips))


def _refuse_left_out(files: list[_File], labels: Labels, request: Request) -> None:
    """Refuse images that no reader reads, unless they may be skipped, and class folders without images.

    Raises:
        DatasetError: which ones.
    """
    problems = Problems()
    for file in files if request.skips is None else ():
        if not _is_image_file(file.path):
            problems.add(_other_sort(file.path))
    if labels.origin == FOLDER and labels.folders.numbers:
        for error in _empty_classes(request.path, files):
            problems.add(error)
    problems.tell()


def _with_beside(paths: list[Path], root: Path) -> tuple[list[_File], list[str]]:
    """The images, those of sorts that are not read last, and the names of all files that belong to none of them.

    Raises:
        DatasetError: a .cls belongs to none.
    """
    names = {os.path.relpath(path, root): path for path in paths}
    images = [name for name in names if names[name].suffix.lower() in {*IMAGE_SUFFIXES, *OTHER_SUFFIXES}]
    beside: dict[str, dict[str, Path]] = {os.path.splitext(name)[0]: {} for name in images}
    unread = []
    for name, path in names.items():
        stem, dot_suffix = os.path.splitext(name)
        suffix = dot_suffix.lower().removeprefix(".")
        if dot_suffix.lower() in {*IMAGE_SUFFIXES, *OTHER_SUFFIXES}:
            continue
        owner = stem if stem in beside else os.path.splitext(stem)[0]  # a.json or a.jpg.json
        if suffix in BESIDE and owner in beside and suffix not in beside[owner]:
            beside[owner][suffix] = path
        elif suffix == "cls":
            raise DatasetError(f"{path}: a .cls and no image of its name")
        else:
            unread.append(name)
    return [_File(names[name], name, beside[os.path.splitext(name)[0]]) for name in images], unread


def _other_sort(path: Path) -> DatasetError:
    return DatasetError(f"{path}: images of this sort are not read; allowed: {ALLOWED}")


def _empty_classes(path: Path, files: list[_File]) -> Iterator[DatasetError]:
    """The folders at the top without images."""
    filled = {file.name.partition("/")[0] for file in files}
    for folder in entries(path):
        if folder.is_dir() and folder.name not in filled:
            yield DatasetError(f"{folder}: {NO_IMAGES}")


def _refuse_no_classes(path: Path, files: list[_File], classes: Classes) -> None:
    """Refuse folders that are parts of a dataset, or one that holds the class folders.

    Raises:
        DatasetError: where the classes are.
    """
    if classes.depth and len(classes.numbers) > 1:
        above = "/".join(files[0].name.split("/")[: classes.depth])
        what = f"all images lie in {above}/, whose folders are the classes"
        raise DatasetError(f"{path}: {what}: give {quote(str(path / above))}")
    refuse_parts(classes, path, f"give one, as {quote(str(path / next(iter(classes.numbers), '')))}")


def _file_sample(file: _File, labels: Labels, keys: Keys) -> Sample:
    path, key = file.path, sample_key(file.name)
    if not key.isascii() and key != key.encode(errors="replace").decode():
        raise DatasetError(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it")
    if path.suffix.lower() in OTHER_SUFFIXES:
        raise _other_sort(path)
    keys.take(key, path)
    with told(path):
        image = path.read_bytes()
    is_jpeg = image_extension(image) == "jpg" if is_image(image) else path.suffix.lower() in JPEG_SUFFIXES
    check_jpeg(image, path) if is_jpeg else check_png(image, path)
    label = class_of(labels.label(file.name, file.contents(), str(path)), path)
    return Sample(key, {"image": image, "label": str(label).encode()}, source=str(path))


def class_of(label: int, where: object) -> int:
    """The class itself.

    Raises:
        DatasetError: it is no number that a class can have.
    """
    if not 0 <= label < MAX_CLASS:
        raise DatasetError(f"{where}: label {label}; a class is a number from 0 on")
    return label


def image_sample(key: str, image: bytes, label: int, where: str, source: Path) -> Sample:
    """A sample from a container: a whole JPEG or PNG, and a class.

    Raises:
        DatasetError: the bytes are not that, or the class is no number that a class can have.
    """
    if not is_image(image):
        raise DatasetError(f"{where}: neither a JPEG nor a PNG")
    check_png(image, where) if image_extension(image) == "png" else check_jpeg(image, where)
    return Sample(key, {"image": image, "label": str(class_of(label, where)).encode()}, source=str(source))


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
