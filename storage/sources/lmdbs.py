"""LMDB environments that users have: encoded images under any key.

Pickles and Datum messages are refused, never loaded.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchsuite.storage.dataset.fields import is_image
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.lmdb import DATA, environment
from benchsuite.storage.sources.classes import classes_of, refuse_flat, refuse_parts
from benchsuite.storage.sources.hidden import in_hidden
from benchsuite.storage.sources.images import image_sample
from benchsuite.storage.sources.labels import Labels, refuse_unread
from benchsuite.storage.sources.source import (
    Keys,
    Request,
    Source,
    entries,
    file_size,
    nothing,
    sample_key,
    whole,
    with_suffixes,
)

_ABOUT_ITSELF = re.compile(rb"__.*__")
"""Keys such as `__len__`, under which people keep facts about the whole."""
_DATUM = re.compile(rb"\x08[\x01\x03\x04]\x10.{1,2}\x18|\x28.{1,3}\x38\x01|\x22.{2,5}\x28.{1,3}\x38\x01", re.DOTALL)
"""How Caffe's Datum begins: channels, height, width; or label and `encoded`."""


def find_lmdb(path: Path, inside: list[Path]) -> list[Path]:
    """`data.mdb` in a folder, or a file that is named .mdb or .lmdb."""
    if path.is_dir():
        return [found for found in inside if found.name == DATA and found.is_file()]
    return with_suffixes(inside, ".mdb", ".lmdb")


def _entries(path: Path, values: bool) -> Iterator[tuple[str, bytes]]:
    """Names and contents in order, but of entries about the whole; without contents where only names are asked for."""
    import lmdb

    file_size(path)
    with environment(path) as opened, opened.map.begin(buffers=True) as transaction:
        with told(path, lmdb.Error):
            cursor: Any = transaction.cursor()
            more = cursor.first()
        while more:
            with told(path, lmdb.Error):
                key, value = bytes(cursor.key()), bytes(cursor.value()) if values else b""
            if not _ABOUT_ITSELF.fullmatch(key):
                with told(f"{path}: key {key[:40]!r}", UnicodeDecodeError):
                    name = key.decode()
                yield name, value
            with told(path, lmdb.Error):
                more = cursor.next()


def open_images(paths: list[Path], request: Request) -> Source:
    """Encoded images; the first folder of a key that differs names the class, 0 where it has no folder.

    Raises:
        DatasetError: a damaged file, entries that are no images, or folders that are no classes.
    """
    (path,) = paths
    folders, count, num_hidden = set(), 0, 0
    for name, _ in _entries(path, values=False):
        num_hidden += in_hidden(name)
        if not in_hidden(name):
            folders.add(name.rpartition("/")[0])
            count += 1
    if not count:
        raise nothing(request.path, request.kind, "entries in the LMDB file")
    classes, keys = classes_of(folders), Keys("entry")
    refuse_flat(folders, path)
    refuse_parts(classes, path, "store each by itself")
    beside = [found.name for found in entries(request.path)] if request.path.is_dir() else []
    refuse_unread(path, beside, Labels(classes, field=request.options.label_field))

    def sample(name: str, image: bytes) -> Sample:
        where = f"{path}: entry {name!r}"
        _refuse_other(image, where)
        return image_sample(keys.take(sample_key(name), where), image, classes.of(name), where, path)

    makers = (partial(sample, *entry) for entry in _entries(path, values=True) if not in_hidden(entry[0]))
    notes: dict[str, str | int | float | None] = {"hidden_files": num_hidden}
    return Source(count, file_size(path), whole(makers, request.skips), notes=notes)


def _refuse_other(value: bytes, where: str) -> None:
    """Say what an entry is where it is one of the things that are often kept in LMDB instead of images."""
    if is_image(value):
        return
    if value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise DatasetError(f"{where}: a pickle, which is never loaded; store the JPEG or PNG itself")
    if _DATUM.match(value):
        raise DatasetError(f"{where}: looks like a Datum message of Caffe; store the JPEG or PNG itself")
