"""LMDB environments that users have: encoded images under any key, or the entries that format lmdb writes.

Pickles and Datum messages are refused, never loaded.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from benchsuite.storage.dataset.fields import KIND_FIELDS, is_image
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.lmdb import DATA, environment
from benchsuite.storage.sources.classes import Classes, classes_of, refuse_parts
from benchsuite.storage.sources.images import image_sample
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    file_size,
    name_key,
    nothing,
    told,
    whole,
    with_suffixes,
)
from benchsuite.storage.sources.volumes import volume_sample

_OWN = re.compile(rb"\d{10}/(image|label|npy)")
_ABOUT_ITSELF = re.compile(rb"__.*__")
"""Keys such as `__len__`, under which people keep facts about the whole."""
_DATUM = re.compile(rb"\x08[\x01\x03\x04]\x10.{1,2}\x18|\x28.{1,3}\x38\x01|\x22.{2,5}\x28.{1,3}\x38\x01", re.DOTALL)
"""How Caffe's Datum begins: channels, height, width; or label and `encoded`."""


def find_lmdb(path: Path, inside: list[Path]) -> list[Path]:
    """`data.mdb` in a folder, or a file that is named .mdb or .lmdb."""
    if path.is_dir():
        return [found for found in inside if found.name == DATA and found.is_file()]
    return with_suffixes(inside, ".mdb", ".lmdb")


def _entries(path: Path, values: bool) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in order; without values where only keys are asked for."""
    import lmdb

    file_size(path)
    with environment(path) as opened, opened.map.begin(buffers=True) as transaction:
        with told(path, lmdb.Error):
            cursor: Any = transaction.cursor()
            more = cursor.first()
        while more:
            with told(path, lmdb.Error):
                key, value = bytes(cursor.key()), bytes(cursor.value()) if values else b""
            yield key, value
            with told(path, lmdb.Error):
                more = cursor.next()


def _only(paths: list[Path]) -> Path:
    (path,) = paths
    return path


def open_images(paths: list[Path], request: Request) -> Source:
    """Encoded images; the first folder of a key that differs names the class, 0 where it has no folder.

    Raises:
        DatasetError: a damaged file, entries that are no images, or folders that are no classes.
    """
    path = _only(paths)
    folders, count, has_own = set(), 0, False
    for key, _ in _entries(path, values=False):
        if not _ABOUT_ITSELF.fullmatch(key):
            count, has_own = count + 1, has_own or _OWN.fullmatch(key) is not None
            folders.add(_text(key, path).rpartition("/")[0])
    if not count:
        raise nothing(request.path, request.kind, "entries in the LMDB file")
    if has_own:
        return Source(count // 2, file_size(path), _own_samples(path, request))
    classes = classes_of(folders)
    refuse_parts(classes, path, "store each by itself")
    return Source(count, file_size(path), _image_samples(path, classes))


def open_volumes(paths: list[Path], request: Request) -> Source:
    """Volumes as format lmdb writes them.

    Raises:
        DatasetError: a damaged file, or entries that are something else.
    """
    path = _only(paths)
    count = sum(1 for _ in _entries(path, values=False))
    if not count:
        raise nothing(request.path, request.kind, "entries in the LMDB file")
    return Source(count // 2, file_size(path), _own_samples(path, request))


def _text(key: bytes, path: Path) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise DatasetError(f"{path}: key {key[:40]!r} is not UTF-8") from None


def _image_samples(path: Path, classes: Classes) -> Iterator[Sample]:
    keys = Keys("entry")

    def sample(name: bytes, image: bytes) -> Sample:
        where = f"{path}: entry {_text(name, path)!r}"
        _refuse_other(image, where)
        key = keys.take(name_key(_text(name, path)), where)
        return image_sample(key, image, classes.of(_text(name, path)), where, path)

    found = ((name, image) for name, image in _entries(path, values=True) if not _ABOUT_ITSELF.fullmatch(name))
    return whole(partial(sample, *entry) for entry in found)


def _refuse_other(value: bytes, where: str) -> None:
    """Say what an entry is where it is one of the things that are often kept in LMDB instead of images."""
    if is_image(value):
        return
    if value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise DatasetError(f"{where}: a pickle, which is never loaded; store the JPEG or PNG itself")
    if _DATUM.match(value):
        raise DatasetError(f"{where}: looks like a Datum message of Caffe; store the JPEG or PNG itself")


def _own_samples(path: Path, request: Request) -> Iterator[Sample]:
    """Samples under `<row>/<field>`; the row is the key."""
    for row, run in groupby(_entries(path, values=True), lambda entry: entry[0].partition(b"/")[0]):
        where = f"{path}: entry {_text(row, path)!r}"
        found: dict[str, bytes] = {}
        for name, value in run:
            if not _OWN.fullmatch(name):
                raise DatasetError(f"{path}: entry {_text(name, path)!r}: not `<row>/<field>`, as format lmdb writes")
            found[name.partition(b"/")[2].decode()] = value
        lacking = [name for name in KIND_FIELDS[request.kind] if name not in found]
        if lacking:
            raise DatasetError(f"{where} lacks /{lacking[0]}")
        yield _own_sample(row.decode(), found, request.kind, where, path)


def _own_sample(key: str, found: dict[str, bytes], kind: str, where: str, path: Path) -> Sample:
    if kind == "volume":
        see = partial(npy.view, where=where)
        return volume_sample(key, see(found["image"]), see(found["label"]), where, path)
    _refuse_other(found["image"], where)
    with told(f"{where}: label", ValueError):
        label = int(found["label"])
    return image_sample(key, found["image"], label, where, path)
