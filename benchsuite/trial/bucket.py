"""What a trial's client of a bucket does beside the steps: its requests, its busiest thread, and its interface."""

import os
from collections.abc import Callable
from pathlib import Path

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.files import text_of
from benchsuite.storage.objects.path import SCHEME, object_path
from benchsuite.storage.objects.profile import settings
from benchsuite.storage.observe.counters import MountIO, endpoint_io
from benchsuite.storage.observe.requests import Counted, Requests, counted

CLIENT_THREADS = "tokio"
"""What the names of the client's own threads begin with."""
THREADS_OF_A_READER = 24
"""Threads of one reader that may ask a store at the same time."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BucketWatch:
    """Counts the requests of a rank and the readers forked from it, from its making on, where our client asks.

    Others' clients do not tell their requests: of them the interface's bytes are known alone.
    """

    def __init__(self, bucket: str, readers: int, counts: bool) -> None:
        self._bucket, self._counts = bucket, counts
        self._requests = Requests((readers + 1) * THREADS_OF_A_READER).start()
        self._began = self._requests.now()

    def begin(self) -> Callable[[], Counted | None]:
        """Begin to count; calling what is returned gives what was asked for since, None where that is not known."""
        before = self._requests.now()
        return lambda: counted(before, self._requests.now()) if self._counts else None

    def so_far(self) -> Counted | None:
        """All requests of the trial, None where they are not known."""
        return counted(self._began, self._requests.now()) if self._counts else None

    def thread_s(self) -> dict[tuple[int, int], float]:
        """CPU seconds so far of each thread of the clients, in every process that has asked for something."""
        return {
            (pid, int(task.name)): used_s
            for pid in set(self._requests.pids())
            for task in _tasks(pid)
            if (used_s := _client_s(task)) is not None
        }

    def interface(self) -> MountIO | None:
        """The counter of the interface that the endpoint is reached by; None where that cannot be told."""
        return endpoint_io(settings(self._bucket).endpoint)


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []


def _client_s(task: Path) -> float | None:
    """CPU seconds of a thread (`man 5 proc_pid_stat`); None of one that is no client's."""
    name, _, rest = text_of(task / "stat").partition("(")[2].rpartition(")")
    if not name.startswith(CLIENT_THREADS):
        return None
    values = rest.split()
    return (int(values[11]) + int(values[12])) / _TICKS_PER_S


def busiest_s(before: dict[tuple[int, int], float], after: dict[tuple[int, int], float]) -> float | None:
    """CPU seconds of the thread that computed most between two moments; None where there is none."""
    return max((used_s - before.get(thread, 0.0) for thread, used_s in after.items()), default=None)


def watched(spec: TrialSpec) -> BucketWatch | None:
    """The watch over a trial's client; None where it reads no bucket."""
    if spec.data.source != "storage" or not (spec.data.root or "").startswith(SCHEME):
        return None
    ours = spec.data.reader == "tuned" or spec.data.staging != "none"
    return BucketWatch(object_path(str(spec.data.root)).bucket, spec.data.readers, ours)
