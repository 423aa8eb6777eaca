"""What the kernel holds back from a process: time for want of memory, cores, and time by a quota on them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .files import text_of


@dataclass(frozen=True)
class Pressure:
    """Counts since the host started, or the control group was made; None where the kernel keeps none."""

    memory_s: float | None
    """Seconds in which some process waited for memory: it is reclaimed, or swapped (`man 5 proc`, PSI)."""
    quota_periods: int | None
    """Periods of the quota on cores of this process's control group, while it had something to run."""
    throttled_periods: int | None
    """Those in which the quota was used up."""


def pressure(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Pressure:
    """What it is now."""
    stalled = re.search(r"^some .*total=(\d+)", text_of(proc / "pressure" / "memory"), re.MULTILINE)
    counted = dict(re.findall(r"^(\w+) (\d+)$", _of_group("cpu", "cpu.stat", proc, groups), re.MULTILINE))
    periods, throttled = (int(counted[name]) if name in counted else None for name in ("nr_periods", "nr_throttled"))
    return Pressure(int(stalled[1]) / 1e6 if stalled else None, periods, throttled)


def group_cpus(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> frozenset[int] | None:
    """The cores that this process's control group may use, on which it may let itself run; None where not told."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # of version 2 and 1 (Documentation/admin-guide)
    told = next((found for name in names if (found := _of_group("cpuset", name, proc, groups).strip())), "")
    ranges = [part.partition("-") for part in told.split(",") if part]
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)) or None


def _of_group(controller: str, name: str, proc: Path, groups: Path) -> str:
    """A file of the control group that this process is in, or of the nearest above; in a container of its own root."""
    path = _found_in_group(controller, name, proc, groups)
    return "" if path is None else text_of(path)


@cache
def _found_in_group(controller: str, name: str, proc: Path, groups: Path) -> Path | None:
    """Where that file lies: processes hardly ever change their group, and to look takes as long as to read."""
    folders = []
    for line in text_of(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = (groups / controller if controllers else groups) / path.lstrip("/")
            folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(groups)]
    places = (folder / name for folder in (*folders, groups / controller, groups))
    return next((place for place in places if text_of(place)), None)
