"""Paths of this machine, and what looks like one and is not."""

import errno
import os
import re
import stat
from pathlib import Path

from benchsuite.inside.files import kind_of
from benchsuite.storage.objects.path import SCHEME, object_path

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095
"""Longest names of files and longest paths on Linux; file systems that allow less say so themselves."""


def is_folder(path: Path) -> bool:
    """Whether a folder is there; not so where its file system does not answer."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def regular(path: Path) -> Path:
    """A path that leads to a file with an end: reading a pipe would wait for ever, a device may fill the memory.

    Raises:
        OSError: it is something else, or missing.
    """
    _refuse_endless(path, path.stat().st_mode)
    return path


def open_regular(path: Path) -> tuple[int, int]:
    """Open a file as `regular` says, for reading; its descriptor and its size.

    Raises:
        OSError: it is something else, missing, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # the opening of a pipe waits, too
    try:
        found = os.fstat(descriptor)
        _refuse_endless(path, found.st_mode)
        os.set_blocking(descriptor, True)  # else a file on tape may be refused instead of brought
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, found.st_size


def _refuse_endless(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"{kind_of(mode)}, not a regular file", str(path))


def local_path(text: str) -> str:
    """A path of this machine as it was given; `runs:1/x` is one.

    Raises:
        ValueError: a URL, which would become a folder named `s3:`, what no file can be called, or no path at all.
    """
    if found := URL.match(text):
        scheme, given = found[1].lower(), text[found.end() :]
        if scheme == "file":
            raise ValueError(f"{text}: a URL; give the path alone: /{given.lstrip('/')}")
        if scheme in ("http", "https"):
            raise ValueError(f"{text}: a URL; allowed: a path of this machine")
        if scheme == "s3":
            here = (
                "a bucket is for datasets (data.root, benchsuite data) and for probes (benchsuite probe storage, "
                "probe checkpoint); allowed here: a path of this machine"
            )
        else:
            here = (
                "a URL that nothing here reads; allowed: a path of this machine, for datasets also s3://bucket/prefix"
            )
        raise ValueError(f"{_without_secrets(text)}: {here}")
    if "\0" in text:
        raise ValueError(f"{text!r}: a path holds no zero byte")
    _refuse_long(text)
    return text


def _without_secrets(text: str) -> str:
    """A URL without what may stand before an @ in it."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def data_root(text: str) -> str:
    """A path of this machine, or the bucket and prefix of datasets.

    Raises:
        ValueError: as `local_path` and `storage.objects.path.object_path` do.
    """
    return str(object_path(text)) if text.lower().startswith(SCHEME) else local_path(text)


def _refuse_long(text: str) -> None:
    longest = max((len(os.fsencode(name)) for name in text.split("/")), default=0)
    if longest > MAX_NAME_BYTES:
        raise ValueError(f"{text[:40]}...: a name of {longest:,} bytes; allowed: up to {MAX_NAME_BYTES}")
    if (size := len(os.fsencode(text))) > MAX_PATH_BYTES:
        raise ValueError(f"{text[:40]}...: a path of {size:,} bytes; allowed: up to {MAX_PATH_BYTES:,}")
