"""Files with predictable names, in folders that others may write too: /tmp, a shared store, a node-local disk.

Anyone can put something at such a name first: a link to a file of this user's, to be truncated through it; a pipe, to
hang its reader; a file of his own, to be believed. So nothing there is followed or waited for, and what is opened is
looked at before a byte of it is changed or used. What is root's passes for one's own: some network mounts show every
file as root's, and root needs no tricks.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KINDS = {stat.S_IFLNK: "symbolic link", stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFIFO: "pipe"}


def kind_of(mode: int) -> str:
    """What a file's mode says it is, with its article."""
    return f"a {KINDS.get(stat.S_IFMT(mode), 'socket or device')}"


def text_of(path: Path) -> str:
    """A file's text without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class NotOwned(OSError):
    """Something else lies at a name than was left there; `strerror` says what."""


def open_plain(path: Path, flags: int, own: bool = True, mode: int = 0o644) -> int:
    """Open a regular file; its descriptor.

    Args:
        path: where.
        flags: without O_TRUNC: what it is is known afterwards.
        own: it must be this user's, under this name alone.
        mode: of a file that is made.

    Raises:
        NotOwned: it is something else, or another's.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe without a reader, or a socket
            raise NotOwned(error.errno, _what(path.lstat().st_mode), path) from error
        raise
    try:
        _refuse(path, os.fstat(descriptor), stat.S_IFREG, own)
    except NotOwned:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, own: bool = True) -> bytes:
    """The content of a regular file, opened by `open_plain`."""
    with open(open_plain(path, os.O_RDONLY, own), "rb") as file:
        return file.read()


def write_new(path: Path, text: str, mode: int = 0o644, made: Callable[[int], None] = lambda descriptor: None) -> None:
    """Put a new file, which is whole from the start, in the place of whatever has its name.

    `made` is shown its descriptor before the file has that name.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            made(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def own_folder(path: Path) -> None:
    """Make a folder that nobody else may write, whatever the umask, or find this user's own there.

    Raises:
        NotOwned: it is something else, or another's.
    """
    try:
        path.mkdir(0o755)
    except FileExistsError:
        refuse_foreign(path)


def own_folders(path: Path) -> None:
    """Make a folder and those above it that are missing; nobody else may write them, whatever the umask."""
    if not path.is_dir():
        own_folders(path.parent)
        with suppress(FileExistsError):
            path.mkdir(0o755)


def refuse_foreign(folder: Path) -> None:
    """Refuse what is no folder of this user's own.

    Raises:
        NotOwned: it is something else, or another's.
    """
    _refuse(folder, folder.lstat(), stat.S_IFDIR, True)


def _refuse(path: Path, found: os.stat_result, wanted: int, own: bool) -> None:
    if stat.S_IFMT(found.st_mode) != wanted:
        raise NotOwned(errno.EPERM, _what(found.st_mode), path)
    if own and found.st_uid not in (0, os.geteuid()):
        raise NotOwned(errno.EPERM, f"belongs to user {found.st_uid}, this is {os.geteuid()}: not used", path)
    if own and wanted == stat.S_IFREG and found.st_nlink > 1:
        raise NotOwned(errno.EPERM, "a file that has other names, too: not used", path)


def _what(mode: int) -> str:
    return f"{kind_of(mode)}, which does not belong there: not used"
