"""Where a store lies: which one a process writes to, and who may read what the process makes there.

A file system may be unmounted while a sweep writes to it. What is made at the store's path then lies on the bare mount
point, and the store cannot be mounted there again. So a process remembers the store that it has begun to write to, and
makes nothing at its path once another is there.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SEGMENTS = "segments"
"""The folder of a store that holds what was measured."""
ID = "store-id"
"""The file of a store that tells it from all others, whatever host looks at it."""
MAX_ID_BYTES = 256
GROUP_BITS = 0o070
GONE_SINCE = "is no longer there: it was removed, or its file system was unmounted"
RESTART_VARIABLES = ("SLURM_RESTART_COUNT", "REQUEUES")
"""Slurm's, and that of our scripts for PBS: how often a job was started before."""


class StoreError(ValueError):
    """Something about a store that its user can mend: said in one line."""


class StoreVanished(StoreError):
    """The store is not there, or another is: it was removed, or its file system is no longer mounted."""

    def __init__(self, store: Path, why: str, kept: str = "") -> None:
        self.store, self.why = store, why
        super().__init__("; ".join(filter(None, [f"store {store} {why}", kept])))

    def with_kept(self, kept: str) -> "StoreVanished":
        """Return it with where a record is kept."""
        return StoreVanished(self.store, self.why, kept)


@dataclass(frozen=True)
class Identity:
    """What tells a store from another at the same path, while a process runs."""

    id: str
    device: int
    """Of its segments; on another node, or after the next mount, the same store may have another."""


_known: dict[str, Identity] = {}
"""The stores that this process writes to, by path."""


def settle(store: Path, may_make: bool = True) -> None:
    """Find a store, or make one, and remember it.

    Raises:
        StoreVanished: there is none, and none may be made.
        OSError: it cannot be made.
    """
    folder, path = store / SEGMENTS, store / ID
    if not _is_folder(folder):
        if not may_make:
            why = "is not there, though this job ran before: is its file system mounted on this node?"
            raise StoreVanished(store, f"{why} If it was never made: mkdir -p {folder}")
        store.mkdir(parents=True, exist_ok=True)
        _make_shared(folder, store)
    with suppress(OSError):  # another user's; where files of some age are purged it shall not be the first to go
        os.utime(path, follow_symlinks=False)
    _known[_key(store)] = Identity(_found_id(path) or _new_id(path, store), folder.stat().st_dev)


def check_writable(store: Path) -> None:
    """Find or make a store, and make a probe file in it, which has no name where the file system can do without.

    From now on this process makes nothing at its path once another store is there. A job that was started before
    makes no store: its own is on a file system that is not mounted here.

    Raises:
        StoreVanished: there is none, and it may not be made.
        StoreError: it cannot be written.
    """
    with written_to(store):
        settle(store, may_make=not was_requeued())
        with tempfile.TemporaryFile(dir=store / SEGMENTS) as probe:
            probe.write(b"x")


def was_requeued() -> bool:
    """Whether this process is of a batch job that was started before."""
    return any(os.environ.get(name, "").strip("0").isdecimal() for name in RESTART_VARIABLES)


def is_settled(store: Path) -> bool:
    """Whether this process has found or made the store."""
    return _key(store) in _known


def check_same(store: Path) -> None:
    """Refuse to go on where another store is at the path of one that this process writes to, or none.

    Raises:
        StoreVanished: so it is.
    """
    known = _known.get(_key(store))
    if known is None:
        return
    try:
        found = Identity(_id_in(store / ID), (store / SEGMENTS).stat().st_dev)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreVanished(store, GONE_SINCE) from None
    except OSError as error:
        raise StoreVanished(store, f"does not answer: {error.strerror}") from error
    if found != known:
        raise StoreVanished(store, "is another one now: another file system or store is at its path")


def is_same(store: Path) -> bool:
    """Whether the store that this process writes to is still there."""
    try:
        check_same(store)
    except StoreVanished:
        return False
    return True


@contextmanager
def written_to(store: Path) -> Iterator[None]:
    """Tell an error of what is written into a store as that of the store; one that is gone explains it better.

    Raises:
        StoreVanished: the store is gone.
        StoreError: the store cannot be written.
    """
    try:
        yield
    except OSError as error:
        check_same(store)
        raise StoreError(f"store {store}: cannot be written: {error.strerror}") from error


def folder_in(store: Path, *names: str) -> Path:
    """Make a folder of a store, with those above it, for all who share the store.

    Raises:
        StoreVanished: the store is gone.
        OSError: it cannot be made.
    """
    check_same(store)
    if not is_settled(store):
        store.mkdir(parents=True, exist_ok=True)
    folder = store
    for name in names:
        folder = folder / name
        _make_shared(folder, store)
    return folder


def share(path: Path, store: Path, most: int = GROUP_BITS) -> None:
    """Give what was made in a store the group of the store's folder, and of its bits for the group those in `most`.

    Who has a umask of 077 would lock all others out. Best effort: errors are ignored.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            share_open(descriptor, store, most)
        finally:
            os.close(descriptor)


def share_open(descriptor: int, store: Path, most: int = GROUP_BITS) -> None:
    """Do as `share` does, for an open file."""
    with suppress(OSError):
        wanted, found = store.stat(), os.fstat(descriptor)
        bits = wanted.st_mode & most & (GROUP_BITS if stat.S_ISDIR(found.st_mode) else 0o060)
        if found.st_uid != os.geteuid() or found.st_mode & bits == bits:
            return
        if found.st_gid != wanted.st_gid:  # else another group than the store's could read it
            os.fchown(descriptor, -1, wanted.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | bits)


def _make_shared(folder: Path, store: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir()
    share(folder, store)


def _key(store: Path) -> str:
    return os.path.abspath(store)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder.

    Raises:
        OSError: its file system does not answer.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _id_in(path: Path) -> str:
    """What an id file says; empty where a process was killed while it made it, or none is there that is a file.

    Raises:
        OSError: it cannot be read; FileNotFoundError: it is not there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, MAX_ID_BYTES).decode(errors="replace").strip() if is_file else ""
    finally:
        os.close(descriptor)


def _found_id(path: Path) -> str:
    """What an id file says; empty where there is none."""
    with suppress(FileNotFoundError):
        return _id_in(path)
    return ""


def _new_id(path: Path, store: Path) -> str:
    """Give a store its id, unless another process has done so meanwhile; the id that it has."""
    try:
        _link_unnamed(path, store)
    except FileExistsError:
        pass
    except OSError:  # network file systems have no files without a name
        _link_named(path, store)
    return _id_in(path)


def _link_unnamed(path: Path, store: Path) -> None:
    """Make an id file of a file without a name, of which nothing is left where this process is killed."""
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        _write_id(descriptor, store)
        # With a descriptor of a folder, even one that is not used, Python follows what is a link in /proc.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _link_named(path: Path, store: Path) -> None:
    """Make an id file of one beside it, which is whole before it gets that name."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_id(descriptor, store)
        os.link(partial, path)
    except FileExistsError:
        pass
    except OSError:  # the file system has no hard links
        if _found_id(path):
            return
        partial.replace(path)
    finally:
        os.close(descriptor)
        partial.unlink(missing_ok=True)


def _write_id(descriptor: int, store: Path) -> None:
    os.write(descriptor, f"{secrets.token_hex(16)}\n".encode())
    os.fsync(descriptor)
    share_open(descriptor, store)
