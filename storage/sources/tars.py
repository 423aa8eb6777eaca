"""Tar files in webdataset's layout: a sample's members follow one another and share the name before the first dot.

Nothing is unpacked to disk. Only regular files are read; links, devices and names that lead out are refused.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats import npy
from benchsuite.storage.sources.classes import NO_IMAGES, Classes, classes_of, refuse_parts, without_images
from benchsuite.storage.sources.images import ALLOWED, OTHER_SUFFIXES, image_sample
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    clean_key,
    file_size,
    nothing,
    packed,
    refuse_packed,
    told,
    total_size,
    whole,
    with_suffixes,
)
from benchsuite.storage.sources.volumes import stored_bytes, volume_sample

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png")
PAIRS = (("image.npy", "label.npy"), ("x.npy", "y.npy"))
_BLOCK_BYTES, _TAIL_BYTES = 512, 1 << 20
_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError)


@dataclass(frozen=True)
class _Member:
    key: str
    extension: str
    read: Callable[[int], bytes]
    """So many bytes of its content; all where that is negative."""


def find_tars(path: Path, inside: list[Path]) -> list[Path]:
    """The .tar files, and compressed ones, which are refused when they are opened."""
    return with_suffixes(inside, ".tar", ".tgz", *packed(".tar"))


def _members(path: Path, folders: set[str]) -> Iterator[_Member]:
    """The regular files of a tar, by what their names say; hidden ones are passed over, folders noted in `folders`."""
    with ExitStack() as stack:
        with told(path, *_ERRORS):
            archive: Any = stack.enter_context(tarfile.open(path, "r:"))
        while True:
            with told(path, *_ERRORS):
                info = archive.next()
            if info is None:
                break
            archive.members = []  # else it keeps one object per member
            name = _checked_name(path, info)
            if info.isdir():
                folders.add(name)
            folder, slash, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            if stem and info.isreg():
                yield _Member(folder + slash + stem, extension.lower(), partial(_content, path, archive, info))
        _check_end(path, archive)


def _checked_name(path: Path, info: tarfile.TarInfo) -> str:
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts or "\0" in info.name:
        raise DatasetError(f"{path}: member {info.name!r} leads out of a folder; such tars are not read")
    if not info.isreg() and not info.isdir():
        raise DatasetError(f"{path}: member {info.name!r} is a link or a device; only regular files are read")
    return str(name)


def _content(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo, most: int) -> bytes:
    with told(f"{path}: member {info.name!r}", *_ERRORS):
        file = archive.extractfile(info) if most != 0 else None
        return file.read(most) if file else b""


def _check_end(path: Path, archive: tarfile.TarFile) -> None:
    """The library takes a damaged or missing header for the end; the end is a block of zeros."""
    file: Any = archive.fileobj
    with told(path, OSError):
        file.seek(archive.offset)
        tail = file.read(_TAIL_BYTES)
    if len(tail) < _BLOCK_BYTES:
        raise DatasetError(f"{path}: ends at byte {archive.offset + len(tail)} without an end mark: truncated")
    if any(tail[:_BLOCK_BYTES]):
        raise DatasetError(f"{path}: damaged header at byte {archive.offset}")
    if any(tail):
        raise DatasetError(f"{path}: goes on after its end mark (tars strung together?); unpack and pack it again")


def _groups(
    path: Path, kind: str, most: int = -1, folders: set[str] | None = None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a tar: name and members by extension, at most so many bytes of each.

    Other files, as notes, are passed over; folders are noted in `folders`.
    """
    for key, run in groupby(_members(path, set() if folders is None else folders), lambda member: member.key):
        found: dict[str, bytes] = {}
        for member in run:
            if member.extension in found:
                raise DatasetError(f"{path}: sample {key!r} has two members .{member.extension}")
            if member.extension in _WANTED[kind]:
                found[member.extension] = member.read(most)
            elif kind == "image" and f".{member.extension.rpartition('.')[2]}" in _ANY_IMAGE:
                found[member.extension] = b""
        if _is_sample(path, kind, key, found):
            yield key, found


_ANY_IMAGE = {*(f".{name}" for name in IMAGE_EXTENSIONS), *OTHER_SUFFIXES}
_WANTED = {"image": {*IMAGE_EXTENSIONS, "cls", "json"}, "volume": {name for pair in PAIRS for name in pair}}


def _is_sample(path: Path, kind: str, key: str, found: dict[str, bytes]) -> bool:
    """Whether these members are a sample, rather than none; half a sample is refused."""
    if kind == "volume":
        pair = next((pair for pair in PAIRS if any(name in found for name in pair)), None)
        lacking = [name for name in pair or () if name not in found]
        if lacking:
            raise DatasetError(f"{path}: sample {key!r} lacks .{lacking[0]}")
        return pair is not None
    images = [extension for extension in IMAGE_EXTENSIONS if extension in found]
    dotted = next((name for name in found if name not in _WANTED["image"]), None)
    other = next((name for name in found if f".{name}" in OTHER_SUFFIXES), None)
    if other or (dotted and not images and f".{dotted.rpartition('.')[2]}" in OTHER_SUFFIXES):
        raise DatasetError(f"{path}: {key}.{other or dotted}: images of this sort are not read; allowed: {ALLOWED}")
    if len(images) > 1:
        raise DatasetError(f"{path}: sample {key!r} has two images: .{' and .'.join(images)}")
    if not images and dotted:
        raise DatasetError(
            f"{path}: {key}.{dotted}: its name has more than one dot; it must have one, before jpg or png"
        )
    if not images and "cls" in found:
        raise DatasetError(f"{path}: sample {key!r} has a .cls and no image")
    return bool(images)


@dataclass(frozen=True)
class _Labels:
    """Where classes come from: .cls members, or `label` in .json members, or folders."""

    has_cls: bool
    folders: Classes

    def of(self, key: str, found: dict[str, bytes], where: str) -> tuple[int, str]:
        """The class of a sample, and where it comes from."""
        if self.has_cls:
            with told(f"{where}: .cls", ValueError):
                return int(found["cls"]), ".cls"
        if "json" in found:
            with told(f"{where}: .json", ValueError):
                facts = json.loads(found["json"])
            label = facts.get("label") if isinstance(facts, dict) else None
            if isinstance(label, int) and not isinstance(label, bool):
                return label, ".json"
        return self.folders.of(key), "its folder"


def open_tar_images(paths: list[Path], request: Request) -> Source:
    """Images of tar shards; a class by .cls, else by `label` of a .json, else by the first folder that differs, else 0.

    Raises:
        DatasetError: damaged shards, half samples, classes of which only some samples have one, or folders that are no
            classes.
    """
    refuse_packed(paths, ".tar")
    count, with_cls, with_json, without = 0, 0, 0, ""
    folders: dict[str, Path] = {}
    filled: set[str] = set()
    for path in paths:
        listed: set[str] = set()
        for key, found in _groups(path, "image", 0, listed):
            count, with_cls, with_json = count + 1, with_cls + ("cls" in found), with_json + ("json" in found)
            without = without or ("" if "cls" in found else f"{path}: sample {key!r}")
            filled.add(key.rpartition("/")[0])
        folders |= dict.fromkeys(listed, path)
    if with_cls and without:
        raise DatasetError(f"{without} lacks .cls, which others have")
    if not count:
        raise nothing(request.path, "image", f".{', .'.join(IMAGE_EXTENSIONS)} members in .tar")
    classes = classes_of(filled) if with_cls or with_json else _folder_classes(request.path, folders, filled)
    return Source(count, total_size(paths), _image_samples(paths, _Labels(with_cls > 0, classes)))


def _folder_classes(source: Path, folders: dict[str, Path], filled: set[str]) -> Classes:
    """The classes that folders with images stand for, given all that are members and the tar of each.

    Raises:
        DatasetError: one has no images, or they are no classes.
    """
    empty = without_images(folders, filled)
    classes = classes_of([*filled, *empty])
    lost = [name for name in empty if name.count("/") >= classes.depth]
    if classes_of(filled).numbers and lost:
        raise DatasetError(f"{folders[lost[0]]}: {lost[0]}/: {NO_IMAGES}")
    refuse_parts(classes, source, "pack each by itself")
    return classes


def _image_samples(paths: list[Path], labels: _Labels) -> Iterator[Sample]:
    keys, origins = Keys(), list[str]()
    return whole(
        partial(_image_of, path, name, found, labels, keys, origins)
        for path in paths
        for name, found in _groups(path, "image")
    )


def _image_of(
    path: Path, name: str, found: dict[str, bytes], labels: _Labels, keys: Keys, origins: list[str]
) -> Sample:
    """A sample, whose class comes from where that of the first one did."""
    where = f"{path}: sample {name!r}"
    label, origin = labels.of(name, found, where)
    if not origins:
        origins.append(origin)
    if origin != origins[0]:
        raise DatasetError(f"{where}: its class comes from {origin}, those before from {origins[0]}")
    image = next(found[extension] for extension in IMAGE_EXTENSIONS if extension in found)
    return image_sample(keys.take(clean_key(name), where), image, label, where, path)


def open_tar_volumes(paths: list[Path], request: Request) -> Source:
    """Volumes of tar shards: members image.npy and label.npy, or x.npy and y.npy.

    Raises:
        DatasetError: damaged shards or half samples.
    """
    refuse_packed(paths, ".tar")
    count = size = 0
    for path in paths:
        for _, found in _groups(path, "volume", npy.MAX_HEADER_BYTES):
            image = next(found[pair[0]] for pair in PAIRS if pair[0] in found)
            count, size = count + 1, size + stored_bytes(io.BytesIO(image), file_size(path))
    if not count:
        raise nothing(request.path, "volume", "members .image.npy with .label.npy, or .x.npy with .y.npy, in .tar")
    return Source(count, size, _volume_samples(paths))


def _volume_samples(paths: list[Path]) -> Iterator[Sample]:
    keys = Keys()
    return whole(
        partial(_volume_of, path, name, found, keys) for path in paths for name, found in _groups(path, "volume")
    )


def _volume_of(path: Path, name: str, found: dict[str, bytes], keys: Keys) -> Sample:
    where = f"{path}: sample {name!r}"
    image, label = next(pair for pair in PAIRS if pair[0] in found)
    arrays = [npy.view(found[member], f"{where}: .{member}") for member in (image, label)]
    return volume_sample(keys.take(clean_key(name), where), arrays[0], arrays[1], where, path)
