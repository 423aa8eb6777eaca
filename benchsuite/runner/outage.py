"""A sweep waits for a file system that has failed several trials in a row, so that not every trial is lost to it."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchsuite.results.store.outcomes import FAILED
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import read_manifest
from benchsuite.storage.errors import GONE_DATASET, OUTAGES, DatasetError
from benchsuite.storage.objects.path import ObjectPath

FAILURES_IN_A_ROW = 3
"""The sweep waits after so many trials with the same error."""
MAX_WAIT_S = 60.0
POLL_S = 0.25
ERRORS = (*map(os.strerror, OUTAGES), GONE_DATASET)
"""The reason of a failed trial holds one of these where a file system is at fault."""


@dataclass
class Outages:
    """Waits for the dataset of trials that fail one after another with the same error of a file system."""

    _error: str | None = None
    _count: int = 0

    def wait_after(self, record: TrialRecord, dataset: Path | None, say: Callable[[str], None]) -> None:
        """Note how a trial ended; wait for its dataset where too many have failed in a row and it is not reachable.

        `say` prints that the sweep waits, and how the wait ended.
        """
        error = file_system_error(record)
        self._count = self._count + 1 if error == self._error else 1
        self._error = error
        if error is None or self._count < FAILURES_IN_A_ROW or dataset is None or is_reachable(dataset):
            return
        self._count = 0
        cause = "the dataset is gone" if error == GONE_DATASET else error
        say(f"{FAILURES_IN_A_ROW} trials in a row failed ({cause}): waiting for {dataset}, at most {MAX_WAIT_S:.0f} s")
        began_s = time.monotonic()
        while not (back := is_reachable(dataset)) and time.monotonic() - began_s < MAX_WAIT_S:
            time.sleep(POLL_S)
        say(f"{dataset} {'is back' if back else 'did not come back'}: the sweep goes on")


def file_system_error(record: TrialRecord) -> str | None:
    """Return the error of a file system that a trial failed with; None where it ended otherwise."""
    reason = record.reason or ""
    return next((error for error in ERRORS if error in reason), None) if record.status in FAILED else None


def is_reachable(dataset: Path) -> bool:
    """Return whether a dataset is there, on a file system that answers; always True for one in a bucket."""
    if isinstance(dataset, ObjectPath):
        return True
    try:
        os.statvfs(dataset)
        read_manifest(dataset)
    except (OSError, DatasetError):
        return False
    return True
