"""What is read of the node now and then while a training steps: the memory of its processes, and clocks."""

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from .clocks import ClockLog
from .files import text_of
from .samples import OwnMemory

APART_S = 10.0
"""How long after each other it is read: the kernel walks the pages of a process for it."""
MOST_KEPT = 60
SHARED_MEMORY = Path("/dev/shm")


class NodeLog:
    """Readings of clocks and of the memory of processes: those of memory at most so many of each, evenly spread."""

    def __init__(self, device: Callable[[], int | None] = lambda: None) -> None:
        """`device` says on which CUDA device this process computes."""
        self._device, self._clocks = device, ClockLog()
        self._seen: dict[int, OwnMemory] = {}
        self._due_s, self._apart_s = 0.0, APART_S
        self._shm_used_fraction: float | None = None
        """The most of /dev/shm that was seen in use."""

    def look(self, readers: Collection[int]) -> None:
        """Read it now, if it is time."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._apart_s
        self._clocks.look(self._device())
        for pid in (os.getpid(), *readers):
            self._add(pid, now_s)
        if any(len(each.at_s) >= MOST_KEPT for each in self._seen.values()):
            self._seen = {pid: each.thinned() for pid, each in self._seen.items()}
            self._apart_s *= 2
        with suppress(OSError):
            disk = os.statvfs(SHARED_MEMORY)
            used = 1 - disk.f_bavail / disk.f_blocks if disk.f_blocks else 0.0
            self._shm_used_fraction = max(used, self._shm_used_fraction or 0.0)

    def told(self) -> dict[str, Any]:
        """What was read, as fields of a rank's samples."""
        return {
            "memory": [*self._seen.values()],
            "shm_used_fraction": self._shm_used_fraction,
            "clocks": self._clocks.told(),
        }

    def _add(self, pid: int, now_s: float) -> None:
        sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", text_of(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE))
        if not sizes:
            return  # it has ended, or the kernel does not show it
        kinds = {
            kind: sum(int(sizes.get(f"{kind}_{state}", 0)) for state in ("Clean", "Dirty")) * 1024 for kind in KINDS
        }
        seen = self._seen.get(pid) or OwnMemory(pid, pid != os.getpid())
        self._seen[pid] = seen.with_one(now_s, kinds["Private"], kinds["Shared"])


KINDS = ("Private", "Shared")
"""Pages of one process, and those that others have as well (`man 5 proc_pid_smaps`)."""
