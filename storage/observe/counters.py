"""What was really read: the kernel's counters of processes, of mounts and of block devices."""

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device's own sectors are."""


@dataclass(frozen=True)
class ProcessIO:
    """Bytes a process asked for, and bytes fetched from storage on its behalf (`man 5 proc_pid_io`)."""

    read_call_bytes: int
    storage_bytes: int


def process_io(pid: int) -> ProcessIO | None:
    """The counters of a running process; None where this user or kernel cannot read them.

    A reaped child's counts are added to its parent's: read workers while they live, and never both.
    """
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="utf-8")
    except OSError:
        return None
    counters = {name: int(value) for name, _, value in (line.partition(":") for line in text.splitlines())}
    return ProcessIO(counters["rchar"], counters["read_bytes"])


def processes_io(pids: Iterable[int]) -> ProcessIO | None:
    """The counters of several processes together; None where one of them cannot be read."""
    total = ProcessIO(0, 0)
    for pid in pids:
        found = process_io(pid)
        if found is None:
            return None
        total = ProcessIO(total.read_call_bytes + found.read_call_bytes, total.storage_bytes + found.storage_bytes)
    return total


@dataclass(frozen=True)
class MountIO:
    """Bytes read from where a path is stored, by everyone on this node, since it was mounted or booted."""

    source: str
    """Whose counter: "diskstats vda", "mountstats /data" or "llite scratch"."""
    read_bytes: int
    from_storage: bool
    """Read from the device or server; else asked of the client, cached or not."""


def mount_io(path: Path) -> MountIO | None:
    """The counter of the mount or block device that holds a path; None where there is none to be read."""
    try:
        number = os.stat(path).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    device, kind, mount, source = _mounted(mounts, path.resolve(), f"{os.major(number)}:{os.minor(number)}")
    if kind in ("nfs", "nfs4"):
        return nfs_io(_text(Path("/proc/self/mountstats")), mount)
    if kind == "lustre":
        return lustre_io(mount)
    if device.startswith("0:"):  # no device of its own: btrfs names the one below it, others have none
        if not source.startswith("/dev/") or not os.path.exists(source):
            return None
        number = os.stat(source).st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
    return disk_io(_text(Path("/proc/diskstats")), device)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _mounted(mountinfo: str, path: Path, device: str) -> tuple[str, str, str, str]:
    """Device number, type, mount point and source of the mount that holds a path (`man 5 proc_pid_mountinfo`)."""
    best = (device, "", "", "")
    for line in mountinfo.splitlines():
        own, _, rest = line.partition(" - ")
        fields, (kind, source, *_) = own.split(), rest.split()
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        if path.is_relative_to(point) and len(point) >= len(best[2]):
            best = (fields[2], kind, point, source)
    return best


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


@dataclass(frozen=True)
class Counters:
    """What the kernel counted for processes (`man 5 proc_pid_io`, `proc_pid_stat`)."""

    read_calls: int
    read_bytes: int
    """Asked for in read calls, cached or not; the pages of mapped files are not in it."""
    storage_bytes: int
    minor_faults: int
    major_faults: int

    def grown(self, before: "Counters") -> "Counters":
        """What was added since."""
        return Counters(*(now - then for now, then in zip(vars(self).values(), vars(before).values(), strict=True)))


def counters(pid: int) -> Counters | None:
    """The counters of a running process with all its threads; None where they cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    found = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return Counters(found["syscr"], found["rchar"], found["read_bytes"], int(stat[7]), int(stat[9]))


def summed(found: list[Counters | None]) -> dict[str, int] | None:
    """The counters of several processes; None where there are none, or one cannot be read."""
    known = [asdict(counted) for counted in found if counted is not None]
    if not known or len(known) < len(found):
        return None
    return {name: sum(counted[name] for counted in known) for name in known[0]}
