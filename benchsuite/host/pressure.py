"""What the kernel holds back from a process: time for want of memory, and time by a quota on cores."""

import re
from dataclasses import dataclass
from pathlib import Path

from benchsuite.host.machine import text_of


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
    counted = dict(re.findall(r"^(\w+) (\d+)$", _cpu_stat(proc, groups), re.MULTILINE))
    periods, throttled = (int(counted[name]) if name in counted else None for name in ("nr_periods", "nr_throttled"))
    return Pressure(int(stalled[1]) / 1e6 if stalled else None, periods, throttled)


def _cpu_stat(proc: Path, groups: Path) -> str:
    """The counters of the control group that this process is in; as a container sees them, those of its own root."""
    for line in text_of(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return text_of(groups / "cpu" / path.lstrip("/") / "cpu.stat") or text_of(groups / "cpu" / "cpu.stat")
        if not controllers and (found := text_of(groups / path.lstrip("/") / "cpu.stat")):
            return found
    return text_of(groups / "cpu" / "cpu.stat") or text_of(groups / "cpu.stat")
