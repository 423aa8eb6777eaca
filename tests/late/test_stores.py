"""A store on a network file system: sweeps of two nodes that see each other's files late, and whose clocks differ."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import Bench
from tests.late.mounts import OTHER_NODE, LateMounts
from tests.late.sweeps import AHEAD, BASE, BEHIND, ended, on, records, rehearsed, start

Wait = Callable[..., None]
AGREE = pytest.param([], id="clocks agree", marks=pytest.mark.full)


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


def test_claims_name_their_node(mounts: LateMounts, bench: Bench, wait_until: Wait) -> None:
    """What the tests above rest on: a process of another namespace is of another place."""
    file = bench.write(rehearsed(points=1))
    bench.env["REHEARSED_S"] = "0.2"
    ended(start(bench, mounts.first, file, "--launcher", "rehearsed", before=OTHER_NODE))
    ended(start(bench, mounts.first, file, "--launcher", "rehearsed", "--session", "here"))
    claims = [json.loads(path.read_text()) for path in on(mounts.source).glob("claims/*/*.0")]
    assert len({claim["holder"]["process"].partition("-")[0] for claim in claims}) == 2
