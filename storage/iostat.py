"""What was really read: the kernel's counters of a process."""

from dataclasses import dataclass
from pathlib import Path

READS_COUNTED = frozenset({"ext4", "xfs", "btrfs", "overlay", "f2fs", "nfs", "nfs4"})
"""File systems whose reads from storage the kernel adds to a process's counters; others would show as zero."""


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
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    counters = {name: int(value) for name, _, value in (line.partition(":") for line in text.splitlines())}
    return ProcessIO(counters["rchar"], counters["read_bytes"])
