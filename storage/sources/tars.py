"""Tar files in webdataset's layout: a sample's members follow one another and share the name before the first dot.

Nothing is unpacked to disk. Only regular files are read; links, devices and names that lead out are refused.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from tarfile import BLOCKSIZE

from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.dataset.sample import Sample, fresh
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.tar import IMAGE_EXTENSIONS, places, whole_tar
from benchsuite.storage.sources.classes import NO_IMAGES, Classes, classes_of, refuse_parts, without_images
from benchsuite.storage.sources.images import ALLOWED, OTHER_SUFFIXES, image_sample
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    clean_key,
    file_size,
    nothing,
    refuse_packed,
    total_size,
    whole,
)

_ANY_IMAGE = {*(f".{name}" for name in IMAGE_EXTENSIONS), *OTHER_SUFFIXES}
_WANTED = {*IMAGE_EXTENSIONS, "cls", "json"}
_TAIL_BYTES = 1 << 20


def _members(path: Path, folders: set[str], with_content: bool) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """The files of a tar by key and extension, and their content where that is wanted.

    Hidden ones are passed over, folders noted in `folders`.
    """
    end, num_bytes = 0, file_size(path)
    with LocalFile(path) as file, whole_tar(path):
        for place in places(file, folders=True):
            if place.offset + place.size > num_bytes:
                raise DatasetError(f"{path}: member {place.name!r}: the file ends inside it: truncated")
            end = place.offset + place.size + -place.size % BLOCKSIZE
            name = str(PurePosixPath(place.name))
            folder, slash, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            if place.name.endswith("/"):
                folders.add(name)
            elif stem:
                size = place.size if with_content else 0
                content = partial(_content, file, place.offset, size)
                yield folder + slash + stem, extension.lower(), content
        _check_end(path, file, end)


def _content(file: LocalFile, offset: int, size: int) -> bytes:
    return file.read_at(offset, fresh("", size)).tobytes()


def _check_end(path: Path, file: LocalFile, end: int) -> None:
    """The library takes a damaged or missing header for the end; the end is a block of zeros."""
    tail = file.peek(_TAIL_BYTES, end)
    if len(tail) < BLOCKSIZE:
        raise DatasetError(f"{path}: ends at byte {end + len(tail)} without an end mark: truncated")
    if any(tail[:BLOCKSIZE]):
        raise DatasetError(f"{path}: damaged header at byte {end}")
    if any(tail):
        raise DatasetError(f"{path}: goes on after its end mark (tars strung together?); unpack and pack it again")


def _groups(path: Path, folders: set[str], with_content: bool) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a tar: name and members by extension.

    Other files, as notes, are passed over; folders are noted in `folders`.
    """
    for key, run in groupby(_members(path, folders, with_content), lambda member: member[0]):
        found: dict[str, bytes] = {}
        for _, extension, content in run:
            if extension in found:
                raise DatasetError(f"{path}: sample {key!r} has two members .{extension}")
            if extension in _WANTED:
                found[extension] = content()
            elif f".{extension.rpartition('.')[2]}" in _ANY_IMAGE:
                found[extension] = b""
        if _is_sample(path, key, found):
            yield key, found


def _is_sample(path: Path, key: str, found: dict[str, bytes]) -> bool:
    """Whether these members are a sample, rather than none; half a sample is refused."""
    images = [extension for extension in IMAGE_EXTENSIONS if extension in found]
    dotted = next((name for name in found if name not in _WANTED), None)
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


def open_images(paths: list[Path], request: Request) -> Source:
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
        for key, found in _groups(path, listed, with_content=False):
            count, with_cls, with_json = count + 1, with_cls + ("cls" in found), with_json + ("json" in found)
            without = without or ("" if "cls" in found else f"{path}: sample {key!r}")
            filled.add(key.rpartition("/")[0])
        folders |= dict.fromkeys(listed, path)
    if with_cls and without:
        raise DatasetError(f"{without} lacks .cls, which others have")
    if not count:
        raise nothing(request.path, "image", f".{', .'.join(IMAGE_EXTENSIONS)} members in .tar")
    classes = classes_of(filled) if with_cls or with_json else _folder_classes(request.path, folders, filled)
    labels, keys, origins = _Labels(with_cls > 0, classes), Keys(), list[str]()
    found_in = ((path, *group) for path in paths for group in _groups(path, set(), with_content=True))
    return Source(
        count, total_size(paths), whole(partial(_image_of, *each, labels, keys, origins) for each in found_in)
    )


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
