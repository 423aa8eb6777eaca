"""What others may put at a predictable name in a folder that they may write."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

NOBODY = 65534
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
KINDS = ["link", "dangling", "pipe", "hard link"]
CONTENT = b"a file of this user's, which others may not write"


@dataclass(frozen=True)
class Planted:
    """Something at a name, and the file that it leads to."""

    mine: Path
    leads: bool

    def is_untouched(self) -> None:
        """Nothing was written through it."""
        assert self.mine.exists() == self.leads
        if self.leads:
            assert self.mine.read_bytes() == CONTENT


@pytest.fixture
def open_umask() -> Iterator[None]:
    """By which everyone may write what is made."""
    before = os.umask(0)
    yield
    os.umask(before)


def plant(path: Path, kind: str, mine: Path) -> Planted:
    """Put something at a name: a link to the file `mine`, a pipe without a writer, another user's file."""
    if kind != "dangling":
        mine.write_bytes(CONTENT)
    if kind in ("link", "dangling"):
        path.symlink_to(mine)
    elif kind == "hard link":
        path.hardlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"planted")
        if kind == "another's":
            os.chown(path, NOBODY, NOBODY)
    return Planted(mine, kind != "dangling")
