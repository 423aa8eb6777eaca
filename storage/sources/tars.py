"""Tar files in webdataset's layout: a sample's members share the name before the first dot, adjacent or not.

Nothing is unpacked to disk. Only regular files are read; links, devices and names that lead out are refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from tarfile import BLOCKSIZE

from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.dataset.sample import Sample, fresh
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tar import CORRUPT, IMAGE_EXTENSIONS, places, whole_tar
from benchsuite.storage.sources.classes import NO_IMAGES, Classes, classes_of, refuse_flat, refuse_parts, without_images
from benchsuite.storage.sources.hidden import in_hidden
from benchsuite.storage.sources.images import ALLOWED, OTHER_SUFFIXES, image_sample
from benchsuite.storage.sources.labels import (
    BESIDE,
    FOLDER,
    MAX_LOOKED_AT,
    Labels,
    may_hold_labels,
    refuse_unread,
    settled,
)
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    clean_key,
    ends_early,
    entries,
    nothing,
    refuse_packed,
    total_size,
    whole,
)

_ANY_IMAGE = {*(f".{name}" for name in IMAGE_EXTENSIONS), *OTHER_SUFFIXES}
_WANTED = {*IMAGE_EXTENSIONS, *BESIDE}
_TAIL_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
MAX_UNREAD = 20
Extent = tuple[int, int]
"""Where a member's content begins, and its bytes."""
Members = dict[str, Extent]
"""The members of a sample, by extension in small letters."""


@dataclass(frozen=True)
class _Break:
    """Where nothing more of a tar can be read, and why."""

    what: str
    where: str
    key: str | None = None
    """The sample in whose member the file ends; None where it ends elsewhere."""


@dataclass
class _Found:
    """What tars hold, by their headers alone."""

    keys: set[str] = field(default_factory=set)
    """Names of samples."""
    keys_repeat: bool = False
    """Two tars have samples of the same name."""
    num_with_cls: int = 0
    without_cls: str = ""
    """The first sample without a .cls, and where."""
    filled: set[str] = field(default_factory=set)
    """Folders with images."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders that are members, with the tar of each."""
    mixed: set[Path] = field(default_factory=set)
    """Tars in which members of other samples lie between those of one."""
    first: list[tuple[Path, str, Members]] = field(default_factory=list)
    """The first samples that have something beside their images."""
    num_hidden: int = 0
    unread: list[str] = field(default_factory=list)
    """The first members that may hold labels and are not read."""
    breaks: dict[Path, _Break] = field(default_factory=dict)
    """Where tars break off."""
    torn: dict[Path, str] = field(default_factory=dict)
    """The samples that lost members where their tars break off."""


def _members(path: Path, file: LocalFile, all_of: _Found) -> Iterator[tuple[str, str, Extent]]:
    """The files of a tar that are wanted or may hold labels, by key and extension in small letters.

    Hidden ones are counted and passed over, folders noted. At the end `all_of.breaks` says where the tar breaks off.
    """
    end, is_corrupt = 0, False
    with whole_tar(path):
        try:
            for place in places(file, folders=True):
                name = str(PurePosixPath(place.name))
                folder, slash, base = name.rpartition("/")
                stem, _, extension = base.partition(".")
                key, lower = folder + slash + stem, extension.lower()
                if place.offset + place.size > file.size:
                    inside = f"at byte {file.size}, inside member {place.name!r}"
                    all_of.breaks[path] = _Break("cut short", inside, key)
                    return
                end = place.offset + place.size + -place.size % BLOCKSIZE
                if place.name.endswith("/"):
                    all_of.folders[name] = path
                elif in_hidden(name):
                    all_of.num_hidden += 1
                else:
                    is_wanted = lower in _WANTED or f".{lower.rpartition('.')[2]}" in _ANY_IMAGE
                    if is_wanted or may_hold_labels(name):
                        yield key, lower, (place.offset, place.size)
        except DatasetError:
            raise
        except CORRUPT:
            is_corrupt = True
        if (found := _break_at(path, file, end, is_corrupt)) is not None:
            all_of.breaks[path] = found


def _break_at(path: Path, file: LocalFile, end: int, is_corrupt: bool) -> _Break | None:
    """Why no member follows at `end`; None where the tar ends there as it should, with a block of zeros.

    The library takes a damaged or missing header for the end, unless it is the file's first or a member has several:
    `is_corrupt`.

    Raises:
        DatasetError: the file is a tar that was compressed, and has to be unpacked.
    """
    tail = file.peek(_TAIL_BYTES, end)
    if not end and tail.startswith(_GZIP):
        raise DatasetError(f"{path}: compressed by gzip; unpack it first")
    if len(tail) < (3 if is_corrupt and end else 1) * BLOCKSIZE:  # several headers are three blocks or more
        return _Break("cut short", f"at byte {file.size}")
    if is_corrupt or any(tail[:BLOCKSIZE]):
        return _Break("damaged header", f"at byte {end}" if end else "at byte 0: is it a tar?")
    if any(tail):
        remedy = "tars strung together? Unpack and pack them again"
        return _Break("goes on past its end mark", f"at byte {end}: {remedy}")
    return None


def _groups(
    path: Path, file: LocalFile, all_of: _Found, tell: Callable[[DatasetError], None], in_order: bool = False
) -> Iterator[tuple[str, Members]]:
    """The samples of a tar in the order of their first members, wherever the others lie.

    Other files, as notes, are passed over, and half samples, of which `tell` is told.
    """
    for key, found in (_in_order if in_order else _by_key)(path, file, all_of):
        try:
            if key != all_of.torn.get(path) and _is_sample(path, key, found):
                yield key, found
                found = {name: extent for name, extent in found.items() if name not in _WANTED}
        except DatasetError as error:
            tell(error)
        names = (f"{key}.{extension}" for extension in found)
        all_of.unread += [name for name in names if len(all_of.unread) < MAX_UNREAD and may_hold_labels(name)]


def _by_key(path: Path, file: LocalFile, all_of: _Found) -> Iterable[tuple[str, Members]]:
    """The members that are wanted, and those that may hold labels, by the key of their sample."""
    groups: dict[str, Members] = {}
    last = ""
    for key, extension, extent in _members(path, file, all_of):
        is_new = key not in groups
        found = groups.setdefault(key, {})
        if extension in found:
            raise DatasetError(f"{path}: sample {key!r} has two members .{extension}")
        found[extension] = extent
        if key != last and not is_new:
            all_of.mixed.add(path)
        last = key
    if path in all_of.breaks and (torn := _torn(groups, all_of.breaks[path])) is not None:
        all_of.torn[path] = torn
    return groups.items()


def _torn(groups: Mapping[str, Members], found: _Break) -> str | None:
    """The sample that lost members where a tar breaks off; None where none did, as far as one can tell.

    Where the next header is gone the last sample may have gone on: it did where the one before it has more members.
    """
    if found.key is not None or len(groups) < 2:
        return found.key
    before, last = [*groups][-2:]
    has = groups[last].keys() & _WANTED
    return last if has and not has >= groups[before].keys() & _WANTED else None


def _in_order(path: Path, file: LocalFile, all_of: _Found) -> Iterator[tuple[str, Members]]:
    """The same of a tar that is known not to be mixed: content is read as headers are, in one go through the file."""
    for key, run in groupby(_members(path, file, all_of), lambda member: member[0]):
        yield key, {extension: extent for _, extension, extent in run}


def _is_sample(path: Path, key: str, found: Mapping[str, Extent]) -> bool:
    """Whether these members are a sample, rather than none; half a sample is refused."""
    images = [extension for extension in IMAGE_EXTENSIONS if extension in found]
    of_images = [name for name in found if f".{name.rpartition('.')[2]}" in _ANY_IMAGE]
    dotted = next((name for name in of_images if name not in IMAGE_EXTENSIONS), None)
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


def _count(paths: list[Path], request: Request) -> tuple[int, _Found]:
    """How many samples there are, and what else; every header is looked at.

    Raises:
        DatasetError: damaged shards and half samples that may not be left out, or a .cls beside some images alone.
    """
    all_of, count = _Found(), 0
    for path in paths:
        own = set[str]()
        with LocalFile(path) as file:
            for name, found in _groups(path, file, all_of, request.leave_out):
                own.add(name)
                all_of.num_with_cls += "cls" in found
                all_of.without_cls = all_of.without_cls or ("" if "cls" in found else f"{path}: sample {name!r}")
                all_of.filled.add(name.rpartition("/")[0])
                if len(all_of.first) < MAX_LOOKED_AT and not found.keys().isdisjoint(BESIDE):
                    all_of.first.append((path, name, found))
        if path in all_of.breaks:
            request.leave_out(ends_early(path, all_of.breaks[path].what, len(own), "sample", all_of.breaks[path].where))
        count += len(own)
        all_of.keys_repeat = all_of.keys_repeat or not all_of.keys.isdisjoint(own)
        all_of.keys |= own
    if all_of.num_with_cls and all_of.without_cls and request.skips is None:
        raise DatasetError(f"{all_of.without_cls} lacks .cls, which others have")
    return count, all_of


def open_images(paths: list[Path], request: Request) -> Source:
    """Images of tar shards; a class by what `Labels` reads, else by the first folder that differs, else 0.

    Where several tars have samples of the same key, all keys begin with the name of their tar.

    Raises:
        DatasetError: damaged shards, half samples, classes of which only some samples have one, folders that are no
            classes, or labels that are not read.
    """
    refuse_packed(paths, ".tar")
    count, all_of = _count(paths, request)
    if not count:
        raise nothing(request.path, "image", f".{', .'.join(IMAGE_EXTENSIONS)} members in .tar")
    labels = Labels(classes_of(all_of.filled), all_of.num_with_cls > 0, request.options.label_field)
    labels = settled(labels, _beside_images(all_of.first), request.skips is not None)
    if labels.origin == FOLDER:
        labels = replace(labels, folders=_folder_classes(request.path, all_of))
        refuse_unread(request.path, [*all_of.unread, *_names_beside(request.path, paths)], labels)
    keys = Keys()
    makers = (partial(_image_of, *group, labels, keys, all_of.keys_repeat) for group in _all_groups(paths, all_of))
    notes: dict[str, str | int | float | None] = {"hidden_files": all_of.num_hidden}
    return Source(count, total_size(paths), whole(makers, request.skips), notes=notes)


def _all_groups(paths: list[Path], all_of: _Found) -> Iterator[tuple[Path, LocalFile, str, Members]]:
    """The samples of all tars, each to be read before the next one is drawn. `_count` has told of what is left out."""
    for path in paths:
        with LocalFile(path) as file:
            seen = _Found(torn=all_of.torn)
            for name, found in _groups(path, file, seen, lambda error: None, path not in all_of.mixed):
                yield path, file, name, found


def _beside_images(first: list[tuple[Path, str, Members]]) -> Iterator[tuple[str, dict[str, bytes], str]]:
    """What lies beside images: their names, contents by extension, and where."""
    for path, name, found in first:
        with LocalFile(path) as file:
            yield name, _contents(file, found), f"{path}: sample {name!r}"


def _names_beside(folder: Path, paths: list[Path]) -> list[str]:
    """The other files in a folder of tars."""
    return sorted({found.name for found in entries(folder)} - {path.name for path in paths}) if folder.is_dir() else []


def _content(file: LocalFile, extent: Extent) -> bytes:
    offset, size = extent
    return file.read_at(offset, fresh("", size)).tobytes()


def _contents(file: LocalFile, found: Mapping[str, Extent]) -> dict[str, bytes]:
    """What the members beside an image hold, by extension."""
    return {extension: _content(file, found[extension]) for extension in BESIDE if extension in found}


def _folder_classes(source: Path, all_of: _Found) -> Classes:
    """The classes that folders with images stand for, and folders whose images lay where a tar breaks off.

    Raises:
        DatasetError: one has no images, or they are no classes.
    """
    folders, filled = all_of.folders, all_of.filled
    empty = without_images(folders, filled)
    classes = classes_of([*filled, *empty])
    lost = [name for name in empty if name.count("/") >= classes.depth and folders[name] not in all_of.breaks]
    if classes_of(filled).numbers and lost:
        raise DatasetError(f"{folders[lost[0]]}: {lost[0]}/: {NO_IMAGES}")
    refuse_flat(filled, source)
    refuse_parts(classes, source, "pack each by itself")
    return classes


def _image_of(
    path: Path, file: LocalFile, name: str, found: Members, labels: Labels, keys: Keys, keys_repeat: bool
) -> Sample:
    where = f"{path}: sample {name!r}"
    label = labels.label(name, _contents(file, found), where)
    image = _content(file, next(found[extension] for extension in IMAGE_EXTENSIONS if extension in found))
    key = clean_key(f"{path.stem}/{name}" if keys_repeat else name)
    return image_sample(keys.take(key, where), image, label, where, path)
