"""Groups of processes that may use so much of the cores and no more: cgroup v1 (`cpu.cfs_quota_us`) or v2 (`cpu.max`).

The kernel counts at its tick (4 ms at 250 Hz) and by periods: a share holds over some tenths of a second. What runs for
less than a tick is not slowed.
"""

import os
import time
from contextlib import suppress
from math import ceil
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
PERIOD_US = 100_000
GONE_S = 10.0


class CannotLimit(RuntimeError):
    """Why cores cannot be shared out here."""


def limit(name: str, cores: float) -> Path:
    """A new group that may use so many cores; processes enter it by its file `cgroup.procs`.

    Raises:
        CannotLimit: no root, or no cgroup that can.
    """
    old = (V1 / "cpu.cfs_quota_us").exists()
    quota_us = ceil(cores * PERIOD_US)
    group = (V1 if old else V2) / name
    files = (
        {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
        if old
        else {"cpu.max": f"{quota_us} {PERIOD_US}"}
    )
    try:
        group.mkdir()
        for file, text in files.items():
            (group / file).write_text(text)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise CannotLimit(f"cores cannot be shared out by {group}: {error.strerror}") from error
    return group


def missing() -> str | None:
    """Why cores cannot be shared out here; None where they can."""
    try:
        remove(limit(f"benchsuite-{os.getpid()}-try", 1.0))
    except CannotLimit as error:
        return str(error)
    return None


def remove(group: Path) -> None:
    """Remove a group whose processes were ended; the kernel may take a moment over them.

    Raises:
        OSError: some still run.
    """
    deadline = time.monotonic() + GONE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
