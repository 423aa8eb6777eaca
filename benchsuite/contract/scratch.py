"""Temporary folders that do not outlive a killed process for ever: whose they are stands in them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from benchsuite.inside.files import read_plain
from benchsuite.storage.dataset.partial import has_ended, this_process

PREFIX = "benchsuite-"
OWNER = ".owner"
"""The file that says which process has made a folder."""


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, removed afterwards; should this process be killed, by the next one that makes one there.

    Args:
        parent: where; default: the temporary folder.
    """
    where = parent or Path(tempfile.gettempdir())
    _remove_once(where)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=where, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with suppress(OSError):  # one that does not say whose it is stays
            (folder / OWNER).write_text(this_process())
        yield folder


@cache
def _remove_once(parent: Path) -> None:
    remove_abandoned(parent)


def remove_abandoned(parent: Path) -> None:
    """Remove what processes of this host and user have left that were killed; never another host's or a running one's.

    A folder that does not say whose it is stays: it may have been made this moment.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False) and _is_abandoned(Path(entry)):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid() and has_ended(read_plain(folder / OWNER).decode())
    except (OSError, ValueError):
        return False
