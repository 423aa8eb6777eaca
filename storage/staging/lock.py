"""A lock between threads and processes of one node, which the kernel takes from a holder that dies."""

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchsuite.inside.files import open_plain
from benchsuite.storage.errors import DatasetError

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
MAX_HOLDER_BYTES = 200


@contextmanager
def locked(path: Path, on_wait: Callable[[str], None] = lambda holder: None) -> Iterator[int]:
    """Hold the lock `path`, a file that is made and stays until its holder removes or renames it; its descriptor.

    Who has to wait is first told by whom it is held. Who gets a lock whose file was removed or renamed meanwhile tries
    again with a new one.

    Raises:
        DatasetError: the file cannot be made there, something else has its name, or its file system has no locks.
    """
    descriptor = -1
    try:
        while descriptor < 0:
            descriptor = _acquire(path, on_wait)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise DatasetError(f"{path}: its file system has no locks: give a node-local folder") from error
        if os.path.lexists(path):
            raise DatasetError(f"{path}: {error.strerror}") from error
        raise DatasetError(f"{path.parent}: no file can be made there: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[str], None]) -> int:
    """The lock's descriptor; -1 where its file was removed or renamed while it was waited for."""
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(os.pread(descriptor, MAX_HOLDER_BYTES, 0).decode(errors="replace"))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return -1


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at `path`."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def sign(descriptor: int) -> None:
    """Write into a lock's file who holds it, if there is room for that: the lock is held without."""
    holder = f"process {os.getpid()} on {socket.gethostname()}".encode()[:MAX_HOLDER_BYTES]
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder, 0)
