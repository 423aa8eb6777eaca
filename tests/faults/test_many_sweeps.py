"""Many sweeps on one session of one store: each trial is measured once, whoever is killed, stopped or late."""

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import Bench, Here
from tests.helpers.forking import Forked, Parent, forking

Start = Callable[..., Forked]
Wait = Callable[[Callable[[], bool]], None]
LEASE_S = 2
SWEEPS, POINTS, REPEATS = 3, 12, 3
LONG_S = 240


def sweep_of(points: int, repeats: int) -> dict[str, Any]:
    return {
        "name": "shared",
        "base": {
            "workload": "faulty",
            "variant": "sound",
            "data": {"source": "synthetic"},
            "device": "cpu",
            "measure": {"steps": 4, "warmup_steps": 1, "repeats": repeats},
        },
        "grid": {"batch_size": [*range(1, points + 1)]},
    }


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    with forking() as made:
        yield made


@pytest.fixture
def start(parent: Parent, bench: Bench) -> Iterator[Start]:
    """Starts a sweep whose trials take so many seconds."""

    def started(file: Path, seconds: float, *arguments: object) -> Forked:
        words = ["sweep", file, "--store", bench.store, "--launcher", "rehearsed", *arguments]
        return parent.start([str(word) for word in words], bench.env | {"REHEARSED_S": str(seconds)}, bench.folder)

    yield started
    parent.end()


def rehearsed(here: Here, bench: Bench, file: Path, seconds: float, *arguments: object) -> tuple[int, str, str]:
    """The same in this process, which waits for it."""
    bench.env["REHEARSED_S"] = str(seconds)
    return here("sweep", file, "--store", bench.store, "--launcher", "rehearsed", *arguments)


def claims(bench: Bench) -> list[Path]:
    folder = bench.store / "claims" / "default"
    return [path for path in folder.glob("*") if not path.name.startswith(".")] if folder.is_dir() else []


@pytest.mark.full  # `tests/late` has sweeps of two nodes that do
def test_several_sweeps_share_their_trials(bench: Bench, here: Here, start: Start) -> None:
    file = bench.write(sweep_of(POINTS, REPEATS))
    sweeps = [start(file, 0.1, "--lease", LEASE_S) for _ in range(SWEEPS)]
    for process in sweeps:
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert "Traceback" not in err
    records = bench.records()
    measured = Counter(record["trial_id"] for record in records)
    _, out, _ = here("status", file, "--store", bench.store)
    assert out == f"session default · {POINTS * REPEATS} done · 0 failed · 0 running · 0 waiting\n"
    assert len(measured) == POINTS * REPEATS and set(measured.values()) == {1}
    assert {record["status"] for record in records} == {"ok"}
    writers = {path.name for path in (bench.store / "segments").glob("*.jsonl") if "samples" not in path.name}
    assert len(writers) > 1, "more than one had its share"
    assert len(ResultsStore(bench.store).frame()) == POINTS * REPEATS
    code, _, err = rehearsed(here, bench, file, 0.1)
    assert code == 0 and "nothing left to do" in err


def test_the_trial_of_a_killed_sweep_on_another_node_is_taken_over_after_its_lease(
    bench: Bench, here: Here, start: Start, wait_until: Wait
) -> None:
    file = bench.write(sweep_of(2, 1))
    killed = start(file, 60)
    wait_until(lambda: bool(claims(bench)))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (claim,) = claims(bench)
    value = json.loads(claim.read_text())
    claim.write_text(json.dumps(value | {"holder": value["holder"] | {"process": "of another node", "host": "n0417"}}))
    code, _, err = rehearsed(here, bench, file, 0.05, "--lease", LEASE_S)
    assert code == 0, err
    assert claim.with_name(claim.name[:-1] + "1").exists()
    assert sorted(record["status"] for record in bench.records()) == ["ok", "ok"]


def test_a_stopped_sweep_that_wakes_after_its_lease_drops_what_it_measured(
    bench: Bench, here: Here, start: Start, wait_until: Wait
) -> None:
    file = bench.write(sweep_of(1, 1))
    stopped = start(file, 1.0, "--lease", LEASE_S)
    wait_until(lambda: bool(claims(bench)))
    stopped.send_signal(signal.SIGSTOP)
    code, _, err = rehearsed(here, bench, file, 0.05, "--lease", LEASE_S)
    assert code == 0, err
    stopped.send_signal(signal.SIGCONT)
    _, err = stopped.communicate()
    assert stopped.returncode == 0 and "another has taken the trial over" in err
    (record,) = bench.records()
    assert record["status"] == "ok"


def test_what_another_sweep_is_at_is_left_to_it(bench: Bench, here: Here, start: Start, wait_until: Wait) -> None:
    file = bench.write(sweep_of(1, 1))
    bench.env["REHEARSED_FILE"] = str(bench.folder / "may-end")
    busy = start(file, LONG_S, "--lease", LEASE_S)
    wait_until(lambda: bool(claims(bench)))
    code, out, _ = here("status", file, "--store", bench.store)
    assert code == 0 and out.startswith("session default · 0 done · 0 failed · 1 running · 0 waiting\nrunning  ")
    assert f"process {busy.pid}, since " in out
    code, _, err = rehearsed(here, bench, file, 0.05, "--lease", 10 * LEASE_S)
    assert code == 0, err
    assert "1 trial left to another sweep: " in err and f"process {busy.pid}" in err
    (bench.folder / "may-end").touch()
    _, err = busy.communicate()
    assert busy.returncode == 0, err
    assert len(bench.records()) == 1


def test_slurms_early_warning_ends_a_sweep_to_be_requeued(bench: Bench, start: Start, wait_until: Wait) -> None:
    file = bench.write(sweep_of(2, 1))
    process = start(file, 60)
    wait_until(lambda: any(bench.store.glob("work/*/*")))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate()
    assert process.returncode == 75, err
    (claim,) = claims(bench)
    assert json.loads(claim.read_text())["state"] == "released"
    assert [record["status"] for record in bench.records()] == ["interrupted"]


def test_what_would_not_end_in_time_is_not_started(bench: Bench, here: Here) -> None:
    file = bench.write(sweep_of(3, 1))
    code, _, err = rehearsed(here, bench, file, 2, "--until", "+3.5s")
    assert code == 75, err
    assert "trials left, as they could not end in time; the same command goes on" in err
    assert 1 <= len(bench.records()) < 3
    code, _, err = rehearsed(here, bench, file, 0.05)
    assert code == 0 and len(bench.records()) == 3, err
