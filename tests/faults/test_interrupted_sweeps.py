"""Killing a sweep at any moment loses at most the trial in flight, leaves no process, and the next run goes on."""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchsuite.contract.rank_samples import read_progress
from tests.faults.conftest import Bench, Here

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGKILL: -9}


def sweep_of(root: Path, batch_sizes: list[int]) -> dict[str, object]:
    return {
        "name": "interrupted",
        "base": {
            "workload": "resnet50",
            "variant": "nano",
            "data": {"root": str(root), "cache": "warm", "num_workers": 1},
            "parallelism": "ddp",
            "world_size": 2,
            "device": "cpu",
            "measure": {"steps": 60, "warmup_steps": 2, "repeats": 1, "ceilings": False},
        },
        "grid": {"data.format": ["files", "webdataset"], "batch_size": batch_sizes},
        "include": [{"batch_size": 4}],
    }


def has_more(bench: Bench, num_records: int) -> bool:
    return len(bench.records()) > num_records


def stopped_in_a_trial(bench: Bench, sweep: subprocess.Popen[str]) -> bool:
    """Whether a sweep, stopped now, is in the middle of a trial; otherwise it goes on."""
    sweep.send_signal(signal.SIGSTOP)
    ended = {record["trial_id"] for record in bench.records() if record["status"] == "ok"}
    found = [path.parent for path in (bench.store / "work").glob("*/*/progress-1") if ended.isdisjoint(path.parts)]
    rank = read_progress(found[0], 1) if found else None  # the last trial's folder may still be there
    if rank is not None and rank.phase != "done":
        return True
    sweep.send_signal(signal.SIGCONT)
    return False


@pytest.mark.parametrize(
    "signals", [[signal.SIGKILL], pytest.param([*EXIT_CODES], marks=pytest.mark.full)], ids=["one", "three"]
)
def test_at_most_the_trial_in_flight_is_lost(
    bench: Bench, dataset_root: Path, wait_until: Callable[[Callable[[], bool]], None], signals: list[signal.Signals]
) -> None:
    """One sweep, begun once more than it is ended in the middle, each time in another way."""
    batch_sizes = [2, 3][: len(signals)]
    path = bench.write(sweep_of(dataset_root, batch_sizes))
    known: dict[str, dict[str, Any]] = {}
    for number in signals:
        process = bench.start("sweep", path, "--store", bench.store)
        wait_until(partial(has_more, bench, len(known)))
        wait_until(partial(stopped_in_a_trial, bench, process))
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == EXIT_CODES[number], err
        assert "Traceback" not in out + err
        assert bench.wait_gone() == []
        assert bench.leftovers() == []
        records = {record["record_id"]: record for record in bench.records()}
        assert known == {name: record for name, record in records.items() if name in known}, "none is lost"
        added = Counter(record["status"] for name, record in records.items() if name not in known)
        assert added.pop("ok") >= 1
        assert added == ({} if number == signal.SIGKILL else {"interrupted": 1})
        known = records

    code, _, err = bench.sweep(path)
    assert code == 0, err
    ok = {record["record_id"]: record["trial_id"] for record in bench.records() if record["status"] == "ok"}
    assert len(ok) == len(set(ok.values())) == 2 * len(batch_sizes) + 1
    assert {name for name, record in known.items() if record["status"] == "ok"} < ok.keys()
    assert bench.leftovers() == []


def test_a_session_resumes_and_a_new_one_measures_anew(bench: Bench, here: Here) -> None:
    model = {"workload": "resnet50", "variant": "nano", "data": {"source": "synthetic"}, "device": "cpu"}
    file = bench.write({"name": "twice", "base": model, "grid": {"batch_size": [1, 2]}})
    asked = ("sweep", file, "--store", bench.store, "-o", "measure.repeats=1", "--launcher", "rehearsed")
    assert here(*asked)[0] == 0
    assert len(bench.records()) == 2
    code, out, err = here(*asked)
    assert code == 0 and out == "" and "nothing left to do: all 2 trials" in err
    assert len(bench.records()) == 2
    code, _, err = here(*asked, "--session", "again")
    assert code == 0, err
    assert [record["session"] for record in bench.records()] == ["default", "default", "again", "again"]


def test_what_a_sweep_left_that_was_killed_with_its_agent_is_removed_by_the_next(
    bench: Bench, here: Here, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    model = {"workload": "resnet50", "variant": "nano", "data": {"source": "synthetic"}, "batch_size": 2}
    measure = {"steps": 4000, "warmup_steps": 1, "repeats": 1}
    path = bench.write({"name": "killed", "base": model | {"device": "cpu", "measure": measure}})
    process = bench.start("sweep", path, "--store", bench.store)
    wait_until(lambda: any((bench.store / "work").glob("*/*/progress-0")))
    for each in bench.processes():
        with suppress(psutil.NoSuchProcess):  # ranks end with their agent
            each.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert bench.wait_gone() == []
    assert bench.leftovers() != []

    code, _, err = here("sweep", path, "--store", bench.store, "-o", "measure.steps=4")
    assert code == 0, err
    assert bench.leftovers() == []
