"""Compaction that is killed, or not alone: nothing is lost, nothing doubled."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store import compaction
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

RECORDS = 16
"""Of each of those who write at once."""
WRITER = """
import sys, time
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

store, name = ResultsStore(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    trial = f"{name}.{number - number % 2}"
    store.append(made_record(number, record_id=f"{name}-{number}", trial_id=trial), {"number": number})
    time.sleep(0.002)
"""
COMPACTOR = """
import sys
from pathlib import Path
from benchsuite.results.store import compaction
from benchsuite.results.store.store import ResultsStore

compaction.PART_RECORDS = 16
while not (Path(sys.argv[1]) / "done").exists():
    ResultsStore(sys.argv[1]).compact()
"""


def ids(store: Path) -> list[str]:
    """Every record; each must be there once, and every trial once in the frame."""
    found = [record.record_id for record in ResultsStore(store).records()]
    assert len(found) == len(set(found))
    trials = ResultsStore(store).frame(columns=["trial_id"])["trial_id"].tolist()
    assert len(trials) == len(set(trials))
    return sorted(found)


def filled(path: Path, first: int, count: int) -> None:
    """Append such records; every third is another attempt at the trial before."""
    store = ResultsStore(path)
    for number in range(first, first + count):
        store.append(made_record(number, trial_id=f"t{number - (number % 3 == 2)}"))


def killed_at(step: int, path: Path) -> bool:
    """Compact in a process that is killed before its step-th call that changes the disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        try:
            _count_down(step)
            ResultsStore(path).compact()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _count_down(step: int) -> None:
    left = [step]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return act(*arguments, **named)

        return call

    for name in ("fsync", "replace", "unlink", "utime"):
        setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.full)], ids=["second", "first"])
def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool):
    monkeypatch.setattr(compaction, "PART_RECORDS", 4)
    start = tmp_path / "start"
    filled(start, 0, 7)
    if again:
        ResultsStore(start).compact()
        filled(start, 7, 4)
        stale = start / "parquet" / "stale.parquet"
        stale.write_bytes(b"x")
        os.utime(stale, (0, 0))
    want, step = ids(start), 0
    while True:
        store = tmp_path / f"killed-{step}"
        shutil.copytree(start, store)
        was_killed = killed_at(step, store)
        assert ids(store) == want, f"killed before step {step}"
        filled(store, 11, 2)
        assert ResultsStore(store).compact().num_records == len(want) + 2
        assert ids(store) == sorted([*want, "record-11", "record-12"])
        if not was_killed:
            break
        step += 1
    assert step >= 9, "a part, earlier attempts and the manifest: three calls each"


def test_writers_and_two_compactions_at_once(tmp_path: Path):
    filled(tmp_path, 0, 1)
    compactors = [subprocess.Popen([sys.executable, "-c", COMPACTOR, str(tmp_path)]) for _ in range(2)]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"w{n}", str(RECORDS)]) for n in range(3)]
    seen: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        found = set(ids(tmp_path))
        assert seen <= found, "what was read once is read again"
        seen = found
        time.sleep(0.01)
    (tmp_path / "done").touch()
    assert [process.wait(timeout=60) for process in (*writers, *compactors)] == [0] * 5
    want = sorted(["record-0", *(f"w{n}-{number}" for n in range(3) for number in range(RECORDS))])
    assert ids(tmp_path) == want
    assert ResultsStore(tmp_path).compact().num_records == len(want)
    store = ResultsStore(tmp_path)
    frame = store.frame()
    assert len(frame) == 1 + 3 * RECORDS // 2
    written = frame["record_id"][frame["record_id"].str.startswith("w")]  # all begin in one second, in any order
    assert set(written.str.split("-").str[1].astype(int) % 2) == {1}, "the second attempt of each trial"
    for record in store.records()[::10]:
        if record.sweep == "made" and record.record_id.startswith("w"):
            samples = store.samples(record)
            assert samples is not None and record.record_id.endswith(f"-{samples['number']}")


def test_the_compaction_that_loses_the_race_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first began before the second and ends after it: its manifest knows less, and counts."""
    filled(tmp_path, 0, 3)
    save = compaction.save

    def late(store: Path, manifest: Any, *rest: Any) -> None:
        monkeypatch.setattr(compaction, "save", save)
        filled(store, 3, 3)
        assert ResultsStore(store).compact().num_records == 6
        save(store, manifest, *rest)

    monkeypatch.setattr(compaction, "save", late)
    assert ResultsStore(tmp_path).compact().num_records == 3
    want = [f"record-{number}" for number in range(6)]
    assert ids(tmp_path) == want
    assert ResultsStore(tmp_path).compact().num_records == 6
    assert ids(tmp_path) == want


def test_a_writer_goes_on_through_compactions(tmp_path: Path):
    store = ResultsStore(tmp_path)
    for number in range(5):
        store.append(made_record(number), {"number": number})
        assert ResultsStore(tmp_path).compact().num_records == number + 1
    assert [record.repeat for record in store.records()] == list(range(5))
    assert len([path for path in (tmp_path / "segments").iterdir() if "samples" not in path.name]) == 1
