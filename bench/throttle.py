"""A slow shared file system on one machine: a limit on what this process and its children read from a device.

Needs root and Linux's block throttling, by cgroup v1 (`blkio.throttle.read_bps_device`, `..._iops_device`) or v2
(`io.max`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from benchsuite.storage.observe.counters import mount_io

V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")


class CannotThrottle(RuntimeError):
    """Why reads cannot be limited here."""


def device_of(path: Path) -> str:
    """The whole block device below a path, as "major:minor".

    Raises:
        CannotThrottle: there is none.
    """
    found = mount_io(path)
    if found is None or not found.source.startswith("diskstats "):
        raise CannotThrottle(f"{path} lies on no block device of its own")
    name = found.source.removeprefix("diskstats ")
    folder = (Path("/sys/class/block") / name).resolve()
    whole = folder.parent if (folder / "partition").exists() else folder
    return (whole / "dev").read_text().strip()


def own_group(root: Path, text: str) -> Path:
    """The group below `root` that a process is in, by the text of its /proc/PID/cgroup; the root where it has none."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if (root == V2 and not controllers) or (root == V1 and "blkio" in controllers.split(",")):
            found = root / path.lstrip("/")
            return found if found.is_dir() else root
    return root


@contextmanager
def throttled(path: Path, most: int, unit: Literal["bps", "iops"] = "bps") -> Iterator[None]:
    """Limit reads from the device of a path, for this process and those it starts, until the block ends.

    `most`: bytes a second, or reads a second.

    Raises:
        CannotThrottle: no root, no cgroup that can, or no block device.
    """
    device, old = device_of(path), V1.is_dir()
    root = V1 if old else V2
    group, before = root / f"benchsuite-{os.getpid()}", own_group(root, Path("/proc/self/cgroup").read_text())
    limit = (
        (f"blkio.throttle.read_{unit}_device", f"{device} {most}") if old else ("io.max", f"{device} r{unit}={most}")
    )
    try:
        group.mkdir()
        (group / limit[0]).write_text(limit[1])
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise CannotThrottle(f"reads cannot be limited by {group}: {error.strerror}") from error
    try:
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():  # helpers of this one may live on
            with suppress(OSError):
                (before / "cgroup.procs").write_text(process)
        with suppress(OSError):
            group.rmdir()
