"""Facts of the moment, which drift between the repeats of a trial: load, clocks, users and memory of this host."""

import os
from pathlib import Path
from typing import Any

import psutil

from benchsuite.inside.clocks import CPUS, most_mhz, throttle_count
from benchsuite.inside.files import text_of

CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups says no limit by a number near 2^63."""


def moment() -> dict[str, Any]:
    """What this host is like now; None where it does not say.

    `cpu_mhz` is the clock of the fastest core that this process may use, `cpu_limit_mhz` what the kernel lets it reach,
    `cpu_throttled` how often cores were held back for heat since the host started.
    """
    available, total = memory_bytes()
    return {
        "load_average_5min": os.getloadavg()[1],
        "cpu_mhz": cpu_mhz(),
        "cpu_limit_mhz": cpu_limit_mhz(),
        "cpu_throttled": throttle_count(),
        "memory_available_bytes": available,
        "memory_limit_bytes": total,
        "users": sorted({user.name for user in psutil.users()}),
    }


def _number(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdecimal() else None


def cpu_mhz(root: Path = CPUS, cpuinfo: Path = Path("/proc/cpuinfo")) -> float | None:
    """The clock of the fastest core; as a virtual machine tells it where the kernel does not."""
    found = most_mhz("scaling_cur_freq", root)
    if found is not None:
        return found
    lines = text_of(cpuinfo).splitlines()
    return max((float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")), default=None)


def cpu_limit_mhz(root: Path = CPUS) -> float | None:
    """What the kernel lets the fastest core reach now: lowered by power and thermal policies."""
    return most_mhz("scaling_max_freq", root)


def memory_bytes(root: Path = CGROUPS, groups: Path = Path("/proc/self/cgroup")) -> tuple[int, int]:
    """Host memory that is available to this process, and that could be: of the host, or of its control group."""
    memory = psutil.virtual_memory()
    available, total = int(memory.available), int(memory.total)
    for folder in _memory_groups(root, groups):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is None or used is None or limit >= UNLIMITED_BYTES:
            continue
        total, available = min(total, limit), min(available, max(0, limit - used + _reclaimable(folder)))
    return available, total


def _memory_groups(root: Path, groups: Path) -> list[Path]:
    """Control groups of this process that may limit its memory: its own and all above, in both versions."""
    found: list[Path] = []
    for _, controllers, name in (line.split(":", 2) for line in text_of(groups).splitlines()):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        own = top / name.lstrip("/")
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return found


def _reclaimable(folder: Path) -> int:
    """Bytes of files that nobody has used lately: counted as used, given up at once."""
    values = dict(line.split() for line in text_of(folder / "memory.stat").splitlines())
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
