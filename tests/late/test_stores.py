"""A store on a network file system: sweeps of two nodes that see each other's files late, and whose clocks differ."""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import Bench
from tests.late.mounts import LATE_S, OTHER_NODE, LateMounts, shifted

Wait = Callable[..., None]
LEASE_S = 2 * LATE_S + 5
"""A beat is seen when it is as old as the mounts are late."""
DEADLINE_S = 200
MEASURE = {"steps": 3, "warmup_steps": 1, "repeats": 1}
BASE = {"workload": "resnet50", "variant": "nano", "device": "cpu", "batch_size": 2, "measure": MEASURE}
AHEAD = pytest.param(shifted("+7h"), id="+7h")
BEHIND = pytest.param(shifted("-7h"), id="-7h", marks=pytest.mark.full)
AGREE = pytest.param([], id="clocks agree", marks=pytest.mark.full)


def on(mount: Path) -> Path:
    """The store, by way of a mount."""
    return mount / "store"


def start(bench: Bench, mount: Path, file: Path, *options: object, before: list[str] | None = None) -> Any:
    bench.before = before or []
    return bench.start("sweep", file, "--store", on(mount), "--lease", LEASE_S, *options)


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What a sweep said until it ended with this code."""
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code and "Traceback" not in err, err
    return err


def records(mounts: LateMounts, bench: Bench) -> list[dict[str, Any]]:
    """Every trial's record, as it lies in the folder that both mounts show."""
    bench.store = on(mounts.source)
    return bench.records()


def answers(bench: Bench, mount: Path, file: Path) -> list[str]:
    """What status, report and results say by way of a mount, line by line, but for the names of mounts."""
    found = []
    for verb in (["status", file], ["report", "--format", "md"], ["results", "show", "--format", "csv"]):
        code, out, err = bench.run(*verb, "--store", on(mount))
        assert code == 0 and "Traceback" not in err, err
        found += re.sub(r"\S*/late/(first|second)/store", "STORE", out).splitlines()
    return found


def test_trials_of_every_kind_end_well_and_leave_nothing_hidden(mounts: LateMounts, bench: Bench) -> None:
    data = mounts.first / "data"
    made = ("--workload", "resnet50", "--variant", "nano", "--samples", 96)
    code, _, err = bench.run("data", "generate", data, *made, "--format", "webdataset", "-o", "shard_samples=12")
    assert code == 0, err
    stored = {
        "root": str(data),
        "format": "webdataset",
        "num_workers": 1,
        "cache": "warm",
        "staging_dir": str(bench.folder),
    }
    two = {"world_size": 2, "parallelism": "ddp"}
    points = [
        {"data.source": "storage"},
        {"data.source": "storage", "data.staging": "copy"},
        {"data.source": "storage", "data.staging": "lazy", **two},
        {"data.source": "memory", **two},
    ]
    file = bench.write(
        {"name": "kinds", "base": {**BASE, "data": stored}, "grid": {"data.source": ["synthetic"]}, "include": points}
    )
    said = ended(start(bench, mounts.first, file))
    found = records(mounts, bench)
    assert {record["status"] for record in found} == {"ok"} and len(found) == 5, said
    assert bench.wait_gone() == [] and bench.leftovers() == []
    assert list(on(mounts.source).glob("work/*")) == [] and mounts.hidden() == []


@pytest.mark.parametrize("clock", [AGREE, AHEAD, BEHIND])
def test_two_sweeps_measure_each_trial_once(mounts: LateMounts, bench: Bench, clock: list[str]) -> None:
    grid = {"batch_size": [*range(1, 9)], "data.source": ["synthetic"]}
    file = bench.write({"name": "shared", "base": BASE, "grid": grid})
    sweeps = [
        start(bench, mounts.first, file),
        start(bench, mounts.second, file, before=[*OTHER_NODE, *clock]),
    ]
    for sweep in sweeps:
        ended(sweep)
    bench.before = []
    measured = Counter(record["trial_id"] for record in records(mounts, bench))
    assert len(measured) == 8 and set(measured.values()) == {1}
    assert len({path.name for path in on(mounts.source).glob("segments/*.jsonl")}) == 4, "both have written"
    mounts.settle()
    first = answers(bench, mounts.first, file)
    assert first == answers(bench, mounts.second, file)
    assert first[0] == "session default · 8 done · 0 failed · 0 running · 0 waiting"
    for mount in (mounts.first, mounts.second):
        assert "nothing left to do" in ended(start(bench, mount, file))


@pytest.mark.parametrize("clock", [AHEAD, BEHIND])
def test_the_trials_of_a_node_that_died_are_taken_over_after_the_lease(
    mounts: LateMounts, bench: Bench, wait_until: Wait, clock: list[str]
) -> None:
    file = bench.write(rehearsed(points=2))
    bench.env["REHEARSED_S"] = "600"
    dead = start(bench, mounts.first, file, "--launcher", "rehearsed", before=OTHER_NODE)
    wait_until(lambda: any(on(mounts.source).glob("claims/default/*.0")))
    dead.send_signal(signal.SIGKILL)
    dead.communicate(timeout=DEADLINE_S)
    bench.env["REHEARSED_S"] = "0.05"
    ended(start(bench, mounts.second, file, "--launcher", "rehearsed", before=clock))
    assert [record["status"] for record in records(mounts, bench)] == ["ok", "ok"]
    assert len(list(on(mounts.source).glob("claims/default/*.1"))) == 1, "one of them was taken over"


@pytest.mark.full
def test_a_node_that_wakes_after_its_lease_drops_what_it_measured(
    mounts: LateMounts, bench: Bench, wait_until: Wait
) -> None:
    file = bench.write(rehearsed(points=1))
    bench.env["REHEARSED_S"] = "1"
    stopped = start(bench, mounts.first, file, "--launcher", "rehearsed")
    wait_until(lambda: any(on(mounts.source).glob("claims/default/*.0")))
    stopped.send_signal(signal.SIGSTOP)
    ended(start(bench, mounts.second, file, "--launcher", "rehearsed", before=OTHER_NODE))
    stopped.send_signal(signal.SIGCONT)
    assert "another has taken the trial over" in ended(stopped)
    (record,) = records(mounts, bench)
    assert record["status"] == "ok"


def test_a_store_is_compacted_while_another_node_writes(mounts: LateMounts, bench: Bench, wait_until: Wait) -> None:
    file = bench.write(rehearsed(points=30))
    bench.env["REHEARSED_S"] = "0.5"
    writing = start(bench, mounts.first, file, "--launcher", "rehearsed")
    wait_until(lambda: len(records(mounts, bench)) > 3)
    while writing.poll() is None:
        code, _, err = bench.run("results", "compact", "--store", on(mounts.second))
        assert code == 0 and "Traceback" not in err, err
    ended(writing)
    mounts.settle()
    for mount in (mounts.second, mounts.first):
        code, out, err = bench.run("results", "compact", "--store", on(mount))
        assert code == 0, err
        assert len(ResultsStore(on(mount)).frame()) == 30, out
    assert mounts.hidden() == []


def rehearsed(points: int) -> dict[str, Any]:
    """A sweep whose trials take as long as REHEARSED_S says."""
    base = {**BASE, "workload": "faulty", "variant": "sound", "data": {"source": "synthetic"}}
    return {"name": "rehearsed", "base": base, "grid": {"batch_size": [*range(1, points + 1)]}}


def test_claims_name_their_node(mounts: LateMounts, bench: Bench, wait_until: Wait) -> None:
    """What the tests above rest on: a process of another namespace is of another place."""
    file = bench.write(rehearsed(points=1))
    bench.env["REHEARSED_S"] = "0.2"
    ended(start(bench, mounts.first, file, "--launcher", "rehearsed", before=OTHER_NODE))
    ended(start(bench, mounts.first, file, "--launcher", "rehearsed", "--session", "here"))
    claims = [json.loads(path.read_text()) for path in on(mounts.source).glob("claims/*/*.0")]
    assert len({claim["holder"]["process"].partition("-")[0] for claim in claims}) == 2
