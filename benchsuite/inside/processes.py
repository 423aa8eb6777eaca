"""What the kernel has counted of processes and of cores: CPU seconds, bytes read, and whose child a process is."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import NamedTuple

AT_ONCE = 1 << 16
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def text_in_proc(path: str) -> str:
    """A file of `/proc`, by its name there: as text, and in a third of the time that `Path.read_text` takes.

    Raises:
        OSError: it cannot be read.
    """
    file, found = os.open(f"/proc/{path}", os.O_RDONLY | os.O_CLOEXEC), []
    try:
        while piece := os.read(file, AT_ONCE):
            found.append(piece)
    finally:
        os.close(file)
    return b"".join(found).decode(errors="replace")


def born_s(pid: int) -> float:
    """When a process started, in seconds since the host did (CLOCK_BOOTTIME)."""
    return int(_stat(pid)[19]) / TICKS_PER_S


def _stat(task: int | str) -> list[str]:
    """What the kernel says of a process or thread after its name, which may hold spaces (`man 5 proc_pid_stat`)."""
    return text_in_proc(f"{task}/stat").rpartition(")")[2].split()


def everyone_s() -> float:
    """CPU seconds of everyone, since boot, on the cores that this process may use."""
    return busy_and_idle_s()[0]


def busy_and_idle_s(cpus: Collection[int] | None = None) -> tuple[float, float]:
    """Seconds since boot: that the cores were busy which this process may use, and that these were idle.

    `cpus`: those of which the idle seconds are asked; None: all of this host.
    """
    mine, each = os.sched_getaffinity(0), _cpu_times()
    busy_s = sum(times.busy_s for cpu, times in each.items() if cpu in mine)
    return busy_s, sum(times.idle_s for cpu, times in each.items() if cpus is None or cpu in cpus)


class _CpuTimes(NamedTuple):
    busy_s: float
    idle_s: float


def _cpu_times() -> dict[int, _CpuTimes]:
    """Seconds of each core since boot; guests' seconds are in others' (`man 5 proc_stat`)."""
    found = {}
    for line in text_in_proc("stat").splitlines():
        if line.startswith("cpu") and not line.startswith("cpu "):
            name, *ticks = line.split()
            user, nice, system, idle, iowait, irq, softirq, steal, *guests = (
                int(each) for each in [*ticks, *"000000"][:10]
            )
            busy = user + nice + system + irq + softirq + steal - sum(guests)
            found[int(name[3:])] = _CpuTimes(busy / TICKS_PER_S, (idle + iowait) / TICKS_PER_S)
    return found


def children(pid: int) -> list[int]:
    """Living processes that a process has started, and those that they have."""
    try:
        lists = [f"{pid}/task/{thread}/children" for thread in os.listdir(f"/proc/{pid}/task")]
        found = [int(child) for path in lists for child in text_in_proc(path).split()]
    except OSError:  # gone meanwhile, or a kernel that keeps no such lists
        return _children_by_scan(pid)
    return found + [grandchild for child in found for grandchild in children(child)]


def open_files(pid: int) -> frozenset[str]:
    """What a process has open, by the names that the kernel gives: paths, and `pipe:[NUMBER]`; empty where unseen."""
    folder, found = f"/proc/{pid}/fd", set()
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                found.add(os.readlink(f"{folder}/{name}"))
    return frozenset(found)


def _children_by_scan(pid: int) -> list[int]:
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError):  # it has ended meanwhile
            parents[int(name)] = int(_stat(name)[1])
    found = [child for child, parent in parents.items() if parent == pid]
    for child in found:
        found += [each for each, parent in parents.items() if parent == child]
    return found


def tree_cpu_s(below: Collection[int] | None = None) -> float:
    """CPU seconds of this process and all below it; it does not fall when a child is reaped.

    Programs that were sent into a session of their own (`setsid`) are of others. `below`: who that is, where known.
    """
    me, ticks, mine = os.getpid(), 0, str(os.getsid(0))
    for pid in (me, *(children(me) if below is None else below)):
        with suppress(OSError):  # reaped meanwhile: its parent has its counts
            rest = _stat(pid)
            ticks += sum(map(int, rest[11:15])) if rest[3] == mine else 0  # utime, stime, and of those it has reaped
    return ticks / TICKS_PER_S


def scheduled_s(task: int | str) -> tuple[float, float] | None:
    """Seconds that a process's main thread, or `thread-self`, has run and has waited for a core; None where not kept.

    The first fields of /proc/TASK/schedstat, in ns (Documentation/scheduler/sched-stats.rst).
    """
    try:
        ran, waited = text_in_proc(f"{task}/schedstat").split()[:2]
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(waited) / 1e9


def user_and_kernel_s(task: int | str) -> tuple[float, float] | None:
    """CPU seconds of a process, or of `self/task/NUMBER`, in its own code and in the kernel's; None where not kept."""
    try:
        words = _stat(task)
        return int(words[11]) / TICKS_PER_S, int(words[12]) / TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return None


def swapped_in_bytes() -> int | None:
    """Bytes that all processes of this node had swapped in since it started (`pswpin`); None where that is not kept."""
    with suppress(OSError, ValueError, IndexError):
        return int(text_in_proc("vmstat").partition("\npswpin ")[2].split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return None


@dataclass(frozen=True)
class ProcessIO:
    """What the kernel counted for processes (`man 5 proc_pid_io`, `proc_pid_stat`)."""

    read_calls: int
    read_bytes: int
    """Asked for in read calls, cached or not; the pages of mapped files are not in it."""
    storage_bytes: int
    """Fetched from storage on their behalf."""
    minor_faults: int = 0
    major_faults: int = 0

    def grown(self, before: "ProcessIO") -> "ProcessIO":
        """What was added since."""
        return ProcessIO(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


def process_io(pid: int) -> ProcessIO | None:
    """The counters of a running process with all its threads; None where this user or kernel cannot read them.

    A reaped child's counts are added to its parent's: read workers while they live, and never both.
    """
    try:
        lines = text_in_proc(f"{pid}/io").splitlines()
        stat = _stat(pid)
    except OSError:
        return None
    found = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return ProcessIO(found["syscr"], found["rchar"], found["read_bytes"], int(stat[7]), int(stat[9]))


def processes_io(pids: Iterable[int]) -> ProcessIO | None:
    """The counters of several processes together; None where there are none, or one of them cannot be read."""
    found = [process_io(pid) for pid in pids]
    known = [astuple(counted) for counted in found if counted is not None]
    return ProcessIO(*map(sum, zip(*known, strict=True))) if known and len(known) == len(found) else None
