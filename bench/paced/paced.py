"""Format `paced`: a sample takes a reader a known time, and nearly nothing of a core; found by its entry point.

A reader waits for moments in time, so that what it does between two samples, and how late it wakes, is part of the
known time and does not add to it: a disk goes on while who reads from it waits for a core. After a pause (the queue was
full, or the training process read in line) time begins anew.

When a process's main thread began each sample is kept beside the dataset: what the machine made of the pace.
"""

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchsuite.storage.dataset.manifest import (
    Dataset,
    Format,
    IndexRow,
    ReaderShare,
    dealt,
    index_row,
    text,
)
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.stock.reader import Stock

FILE = "paced.bin"
PAUSE_S = 0.001
"""A reader that turns to its next sample so long after it had the last one has paused."""
LEARNING = 0.2
MAX_BEGUN = 4096
"""Samples of one process whose beginnings are kept."""
PR_SET_TIMERSLACK = 29
_mine = threading.local()


def write(folder: Path, samples: Iterable[Sample], sample_us: int = 1000) -> Iterator[IndexRow]:
    """Keep the keys; what was in the samples is of no interest."""
    (folder / FILE).write_bytes(bytes(4096))
    for sample in samples:
        yield index_row(sample, FILE)


def wait_next(pace_s: float) -> None:
    """Wait until this thread's next sample is due, woken as much earlier as it has woken late before."""
    if not hasattr(_mine, "due_s"):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
        _mine.due_s = _mine.back_s = _mine.late_s = 0.0
    now = time.perf_counter()
    _mine.due_s = (_mine.due_s if now - _mine.back_s < PAUSE_S else now) + pace_s
    time.sleep(max(0.0, _mine.due_s - _mine.late_s - now))
    _mine.back_s = time.perf_counter()
    error_s = _mine.back_s - _mine.due_s
    _mine.late_s = min(max(0.0, _mine.late_s + LEARNING * error_s), PAUSE_S)


@cache
def _journal(folder: Path, process: int) -> tuple[NDArray[np.float64], Iterator[int]]:
    return np.memmap(folder / f"begun-{process}.f64", np.float64, "w+", shape=(MAX_BEGUN,)), itertools.count()


def begun_s(folder: Path) -> list[NDArray[np.float64]]:
    """Moments of time.perf_counter() at which each process that has read this dataset began a sample."""
    found = [np.fromfile(path) for path in sorted(folder.glob("begun-*.f64"))]
    return [moments[moments > 0] for moments in found]


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples, each when it is due; their tokens are zeros."""
    pace_s = int(dataset.manifest.options["sample_us"]) / 1e6
    tokens = np.zeros(dataset.manifest.params["seq_len"] + 1, np.uint16)
    main = threading.current_thread() is threading.main_thread()
    begun, counted = _journal(dataset.folder, os.getpid()) if main else (np.zeros(MAX_BEGUN), itertools.count())
    for row in map(int, dealt(len(dataset.index), lane)):
        begun[next(counted) % MAX_BEGUN] = time.perf_counter()
        wait_next(pace_s)
        yield Sample(text(dataset.index["key"][row]), {"tokens": tokens}, row, FILE)


class _Rows:
    """The same samples for a library's reader, by their rows."""

    def __init__(self, dataset: Dataset) -> None:
        self._pace_s = int(dataset.manifest.options["sample_us"]) / 1e6
        self._tokens = np.zeros(dataset.manifest.params["seq_len"] + 1, np.uint16)
        self._begun, self._counted = _journal(dataset.folder, os.getpid())

    def __getitem__(self, row: int) -> Mapping[str, object]:
        self._begun[next(self._counted) % MAX_BEGUN] = time.perf_counter()
        wait_next(self._pace_s)
        return {"tokens": self._tokens}


STOCK = Stock("numpy", by_row=_Rows)
PACED = Format(
    "paced",
    frozenset({"tokens"}),
    write,
    read,
    options={"sample_us": int},
)
