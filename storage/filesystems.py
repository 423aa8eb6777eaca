"""What a client can see of, and do about, the caches of a file system.

The page cache of this node is the kernel's, and mincore tells what is in it; what a server, a daemon or a library keeps
cannot be seen, and no trial on such a file system is certified beyond its client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cached = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class FileSystem:
    """The caches between a file system's storage and its reader."""

    client_visible: bool
    """The client caches in the kernel's page cache and nowhere else, so that mincore tells the truth about it."""
    evictable: bool
    """Pages can be dropped with posix_fadvise, without root."""
    direct: bool
    """O_DIRECT reads go past the client's cache."""
    reads_counted: bool
    """What is fetched from storage is added to the counters of the process that asked (/proc/PID/io)."""
    server_cache: Cached
    """Whether a server keeps data in a memory of its own; that can never be seen from here."""


_LOCAL = FileSystem(True, True, True, True, "no")
UNKNOWN = FileSystem(False, False, False, False, "unknown")
"""Everything that is not in the table: GPFS, DAOS, FUSE, ZFS and the like keep caches of their own."""
FILE_SYSTEMS: Mapping[str, FileSystem] = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs", "f2fs"), _LOCAL),
    "btrfs": _LOCAL,
    "overlay": _LOCAL,
    "tmpfs": FileSystem(True, False, False, False, "no"),
    "nfs": FileSystem(True, True, True, True, "unknown"),
    "nfs4": FileSystem(True, True, True, True, "unknown"),
    "lustre": FileSystem(True, True, True, False, "unknown"),
    "zfs": FileSystem(False, False, False, False, "no"),
    **dict.fromkeys(("gpfs", "dfuse", "fuse", "9p", "virtiofs", "cifs", "ceph", "beegfs", "wekafs"), UNKNOWN),
}
"""By the type that /proc/self/mounts names."""


def file_system_of(kind: str | None) -> FileSystem:
    """The entry of a type of file system; FUSE mounts are named after their daemon."""
    if kind is None or kind.startswith("fuse"):
        return UNKNOWN
    return FILE_SYSTEMS.get(kind, UNKNOWN)


def in_words(kind: str | None) -> str:
    """What can be said of a cold cache there."""
    entry = file_system_of(kind)
    if kind == "tmpfs":
        return "tmpfs is memory: nothing there can be cold"
    client = "yes" if entry.client_visible and entry.evictable else "cannot be seen"
    return f"cold cache: client {client}, server {'none' if entry.server_cache == 'no' else 'cannot be seen'}"
