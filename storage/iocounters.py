"""What the kernel counted for the processes of an I/O trace: read calls, bytes, page faults."""

from dataclasses import asdict, dataclass
from pathlib import Path


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
