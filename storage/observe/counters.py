"""What was really read: the kernel's counters of processes, of mounts and of block devices."""

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchsuite.storage.observe.file_systems import device_of, mount_of

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device's own sectors are."""


@dataclass(frozen=True)
class MountIO:
    """Bytes read from where a path is stored, by everyone on this node, since it was mounted or booted."""

    source: str
    """Whose counter: "diskstats vda", "mountstats /data", "llite scratch" or "net eth0"."""
    read_bytes: int
    from_storage: bool
    """Read from the device or server; else asked of the client, cached or not."""


def mount_io(path: Path) -> MountIO | None:
    """The counter of the mount or block device that holds a path; None where there is none to be read."""
    mount = mount_of(path)
    if mount is None or not path.exists():
        return None
    if mount.fstype in ("nfs", "nfs4"):
        return nfs_io(_text(Path("/proc/self/mountstats")), mount.mountpoint)
    if mount.fstype == "lustre":
        return lustre_io(mount.mountpoint)
    device = device_of(path, mount.device)
    return disk_io(_text(Path("/proc/diskstats")), device) if device else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def disk_io(diskstats: str, device: str) -> MountIO | None:
    """A block device's bytes read, from the text of /proc/diskstats (kernel: admin-guide/iostats)."""
    for fields in map(str.split, diskstats.splitlines()):
        if f"{fields[0]}:{fields[1]}" == device:
            return MountIO(f"diskstats {fields[2]}", int(fields[5]) * SECTOR_BYTES, True)
    return None


def nfs_io(mountstats: str, mount: str) -> MountIO | None:
    """A mount's bytes read from its server, from the text of /proc/self/mountstats.

    The line `bytes:` has eight numbers: normal, direct and server reads stand at 0, 2 and 4 (nfs-utils, mountstats).
    """
    for block in mountstats.split("\ndevice "):
        head, *lines = block.splitlines() or [""]
        if f" mounted on {mount} with fstype nfs" not in head:
            continue
        for line in lines:
            name, _, values = line.strip().partition(":")
            if name == "bytes":
                return MountIO(f"mountstats {mount}", int(values.split()[4]), True)
    return None


def lustre_io(
    mount: str, roots: Iterable[Path] = (Path("/proc/fs/lustre/llite"), Path("/sys/kernel/debug/lustre/llite"))
) -> MountIO | None:
    """Bytes asked of a Lustre client, by its llite statistics: cached ones are among them.

    A client has a folder for each mount, named <file system>-<address>; its `stats` has a line
    `read_bytes <n> samples [bytes] <min> <max> <sum>` (Lustre Operations Manual, 40.2.9).
    """
    for folder in (found for root in roots if root.is_dir() for found in sorted(root.iterdir())):
        name = folder.name.partition("-")[0]
        if name not in mount.split("/") and len(list(folder.parent.iterdir())) > 1:
            continue
        found = re.search(r"^read_bytes\s+\d+ samples \[bytes\] \d+ \d+ (\d+)", _text(folder / "stats"), re.MULTILINE)
        if found:
            return MountIO(f"llite {name}", int(found[1]), False)
    return None


def endpoint_io(endpoint: str | None) -> MountIO | None:
    """Bytes received by the network interface that leads to an object store, headers and what others get included.

    By /proc/net/dev, whose lines are `<interface>: <bytes received> ...` (`man 5 proc_pid_net`). None where no endpoint
    is given, or it is not known which interface leads there.
    """
    address = urlsplit(endpoint or "")
    if not address.hostname:
        return None
    try:
        port = address.port or {"http": 80}.get(address.scheme, 443)
        family, kind, *_, place = socket.getaddrinfo(address.hostname, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(place)  # nothing is sent: the kernel looks for the way
            own = asked.getsockname()[0]
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return interface_io(_text(Path("/proc/net/dev")), name)
    return None


def interface_io(netdev: str, name: str) -> MountIO | None:
    """An interface's bytes received, from the text of /proc/net/dev."""
    for line in netdev.splitlines():
        found, _, values = line.strip().partition(":")
        if found == name:
            return MountIO(f"net {name}", int(values.split()[0]), True)
    return None
