"""What a client can see of, and do about, the caches of a file system.

The page cache of this node is the kernel's, and mincore tells what is in it; what a server, a daemon or a library keeps
cannot be seen, and no trial on such a file system is certified beyond its client.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

Cached = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class FileSystem:
    """The caches between a file system's storage and its reader."""

    client_visible: bool
    """The client caches in the kernel's page cache and nowhere else, so that mincore tells the truth about it."""
    evictable: bool
    """Pages can be dropped with posix_fadvise, without root."""
    reads_counted: bool
    """What is fetched from storage is added to the counters of the process that asked (/proc/PID/io)."""
    server_cache: Cached
    """Whether a server keeps data in a memory of its own; that can never be seen from here."""


_LOCAL = FileSystem(True, True, True, "no")
UNKNOWN = FileSystem(False, False, False, "unknown")
"""Everything that is not in the table: GPFS, DAOS, FUSE, ZFS and the like keep caches of their own."""
FILE_SYSTEMS: Mapping[str, FileSystem] = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs", "f2fs"), _LOCAL),
    "btrfs": _LOCAL,
    "overlay": FileSystem(True, True, True, "unknown"),
    "tmpfs": FileSystem(True, False, False, "no"),
    "nfs": FileSystem(True, True, True, "unknown"),
    "nfs4": FileSystem(True, True, True, "unknown"),
    "lustre": FileSystem(True, True, False, "unknown"),
    "s3": FileSystem(False, False, True, "unknown"),
    **dict.fromkeys(("zfs", "gpfs", "dfuse", "fuse", "9p", "virtiofs", "cifs", "ceph", "beegfs", "wekafs"), UNKNOWN),
}
"""What is known of file systems, by the type that /proc/self/mounts names; s3: what a bucket's client counts."""


def file_system_of(kind: str | None) -> FileSystem:
    """The entry of a type of file system; FUSE mounts are named after their daemon."""
    if kind is None or kind.startswith("fuse"):
        return UNKNOWN
    return FILE_SYSTEMS.get(kind, UNKNOWN)


BLOCK_DEVICES = Path("/sys/dev/block")
_VIRTUAL = re.compile(r"virtio\d+|vbd-\d+|session\d+|(rbd|nbd|drbd|loop|zram)\d+")
"""Folders on the way to a device of a hypervisor (virtio, Xen), of iSCSI, of the network, or of a file or memory."""
_NETWORK_DISKS = ("Amazon Elastic Block Store", "nvme_card-pd", "PersistentDisk", "MSFT NVMe")
"""Models that clouds give disks which lie on servers; their local ones have others."""


def server_cache_of(kind: str | None, device: str | None, devices: Path = BLOCK_DEVICES) -> Cached:
    """Whether a server, or a hypervisor, may keep data in a memory of its own.

    A local file system has such a one where its block device (as "254:0"; None where it is not known) is virtual or
    lies on the network: its `devices` entry, or one below a device mapper's or RAID's, is of virtio, Xen, iSCSI, RBD,
    NBD, DRBD, NVMe over fabrics or a cloud's disk, or a file.
    """
    entry = file_system_of(kind)
    if entry != _LOCAL:
        return entry.server_cache
    return "no" if device is not None and _is_local(devices / device) else "unknown"


def mount_of(path: Path) -> Any | None:
    """The mount that holds a path, as psutil tells it; of several at one place, the last, which hides the others."""
    real = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if real.is_relative_to(mount.mountpoint)]
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint), default=None)


def device_of(path: Path, source: str | None) -> str | None:
    """The block device that holds a path, whose mount's source is as given, as "254:0"; None where there is none."""
    number = os.stat(path).st_dev
    if not os.major(number):  # btrfs has none of its own
        if not source or not source.startswith("/dev/") or not os.path.exists(source):
            return None
        number = os.stat(source).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def _is_local(entry: Path) -> bool:
    """Whether a block device, and each that it is made of, is a disk of this node as far as its driver tells."""
    found = entry.resolve()
    if not found.is_dir():
        return False
    if (found / "partition").exists():
        found = found.parent
    parts = list((found / "slaves").iterdir()) if (found / "slaves").is_dir() else []
    if parts:
        return all(map(_is_local, parts))
    if any(_VIRTUAL.fullmatch(name) for name in found.parts):
        return False
    if _text(found / "device" / "transport") not in ("", "pcie"):
        return False
    return not any(name in _text(found / "device" / "model") for name in _NETWORK_DISKS)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def in_words(kind: str | None, server_cache: Cached | None = None) -> str:
    """What can be said of a cold cache there; `server_cache`: what is known of the device below."""
    entry = file_system_of(kind)
    if kind == "tmpfs":
        return "tmpfs is memory: nothing there can be cold"
    client = "yes" if entry.client_visible and entry.evictable else "cannot be seen"
    server = server_cache or entry.server_cache
    return f"cold cache: client {client}, server {'none' if server == 'no' else 'cannot be seen'}"
