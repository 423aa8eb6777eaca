"""Trials in a row that a file system has failed: the sweep waits for it a while, so that it does not burn them all."""

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

IN_A_ROW = 3
"""Trials with the same error after which it is waited."""
MOST_S = 60.0
PAUSE_S = 0.25
ERRORS = (*map(os.strerror, OUTAGES), GONE_DATASET)
"""What reasons of failures say where a file system is at fault."""


@dataclass
class Outages:
    """Waits for the dataset of trials that fail one after another with the same error of a file system."""

    _error: str | None = None
    _count: int = 0

    def after(self, record: TrialRecord, dataset: Path | None, say: Callable[[str], None]) -> None:
        """Note how a trial ended, before the next one; wait for its dataset where it is the last of too many.

        `say` is told so, and what came of it.
        """
        error = error_of(record)
        self._count = self._count + 1 if error == self._error else 1
        self._error = error
        if error is None or self._count < IN_A_ROW or dataset is None or answers(dataset):
            return
        self._count = 0
        what = "the dataset is gone" if error == GONE_DATASET else error
        say(f"{IN_A_ROW} trials in a row failed ({what}): waiting for {dataset}, at most {MOST_S:.0f} s")
        began_s = time.monotonic()
        while not (back := answers(dataset)) and time.monotonic() - began_s < MOST_S:
            time.sleep(PAUSE_S)
        say(f"{dataset} {'is back' if back else 'did not come back'}: the sweep goes on")


def error_of(record: TrialRecord) -> str | None:
    """The error of a file system that a trial failed with; None where it ended otherwise."""
    reason = record.reason or ""
    return next((error for error in ERRORS if error in reason), None) if record.status in FAILED else None


def answers(dataset: Path) -> bool:
    """Whether a dataset is there, on a file system that answers; of one in a bucket that is not asked."""
    if isinstance(dataset, ObjectPath):
        return True
    try:
        os.statvfs(dataset)
        read_manifest(dataset)
    except (OSError, DatasetError):
        return False
    return True
