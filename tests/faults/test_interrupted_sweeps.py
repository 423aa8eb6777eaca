"""Killing a sweep at any moment loses at most the trial in flight, leaves no process, and the next run goes on."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import Bench

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGKILL: -9}


def sweep_of(root: Path) -> dict[str, object]:
    return {
        "name": "interrupted",
        "base": {
            "workload": "resnet50",
            "variant": "tiny",
            "data": {"root": str(root), "cache": "warm", "num_workers": 1},
            "parallelism": "ddp",
            "world_size": 2,
            "batch_size": 2,
            "device": "cpu",
            "measure": {"steps": 12, "warmup_steps": 2, "repeats": 2, "ceilings": False},
        },
        "grid": {"data.format": ["files", "webdataset"]},
    }


@pytest.mark.parametrize("number", list(EXIT_CODES), ids=lambda number: number.name)
def test_at_most_the_trial_in_flight_is_lost(
    bench: Bench, dataset_root: Path, number: signal.Signals, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    path = bench.write(sweep_of(dataset_root))
    process = bench.start("sweep", path, "--store", bench.store)
    segments = bench.store / "segments"
    wait_until(lambda: segments.is_dir() and bool(bench.records()))
    wait_until(lambda: any((bench.store / "work").glob("*/*/progress-1")))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_CODES[number], err
    assert "Traceback" not in out + err
    assert bench.wait_gone() == []
    assert bench.leftovers() == []
    before = bench.records()
    done = [record["trial_id"] for record in before if record["status"] == "ok"]
    assert done
    dropped = [record for record in before if record["status"] != "ok"]
    assert [record["status"] for record in dropped] == ([] if number == signal.SIGKILL else ["interrupted"])

    code, _, err = bench.sweep(path)
    assert code == 0, err
    ok = [record["trial_id"] for record in bench.records() if record["status"] == "ok"]
    assert len(ok) == len(set(ok)) == 4
    assert ok[: len(done)] == done


def test_a_session_resumes_and_a_new_one_measures_anew(bench: Bench, dataset_root: Path) -> None:
    path = bench.write(sweep_of(dataset_root))
    assert bench.sweep(path, "-o", "measure.repeats=1")[0] == 0
    assert len(bench.records()) == 2
    assert bench.leftovers() == []
    code, out, err = bench.sweep(path, "-o", "measure.repeats=1")
    assert code == 0 and out == "" and "nothing left to do: all 2 trials" in err
    assert len(bench.records()) == 2
    code, _, err = bench.sweep(path, "-o", "measure.repeats=1", "--session", "again")
    assert code == 0, err
    assert [record["session"] for record in bench.records()] == ["default", "default", "again", "again"]


def test_what_a_sweep_left_that_was_killed_with_its_agent_is_removed_by_the_next(
    bench: Bench, wait_until: Callable[[Callable[[], bool]], None]
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

    code, _, err = bench.sweep(path, "-o", "measure.steps=4")
    assert code == 0, err
    assert bench.leftovers() == []
