"""A store whose disk fills up in the middle of an append, or that may only be read: one line, and nothing is lost."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import Bench, Here
from tests.faults.enclosure import NEEDS_ROOT, host

TRIALS = 40
BASE = {
    "workload": "faulty",
    "variant": "sound",
    "data": {"source": "synthetic"},
    "device": "cpu",
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False},
}


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """A file system of 64 KiB where the store's segments are."""
    folder = bench.store / "segments"
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@NEEDS_ROOT
def test_a_disk_that_fills_up_and_one_that_may_only_be_read(bench: Bench, here: Here, small_disk: Path) -> None:
    bench.env["REHEARSED_S"] = "0"
    path = bench.write({"name": "full", "base": BASE, "grid": {"batch_size": [*range(1, TRIALS + 1)]}})
    code, _, err = bench.sweep(path, "--launcher", "rehearsed")
    last = err.splitlines()[-1]
    assert code == 2 and "Traceback" not in err
    assert last == f"error: store {bench.store}: cannot append: No space left on device" or "short write" in last
    before = {record.record_id: record for record in ResultsStore(bench.store).records()}
    assert 5 < len(before) < TRIALS and {record.status for record in before.values()} == {"ok"}
    assert os.statvfs(small_disk).f_bavail == 0, "it is full indeed"
    assert bench.wait_gone() == []

    mount("-o", "remount,size=4m", small_disk)
    code, _, err = bench.sweep(path, "--launcher", "rehearsed")
    assert code == 0, err
    records = ResultsStore(bench.store).records()
    after = {record.record_id: record for record in records}
    assert {name: after[name] for name in before} == before, "no earlier record is lost"
    measured = Counter(record.trial_id for record in records)
    assert len(measured) == TRIALS and set(measured.values()) == {1}

    mount("-o", "remount,ro", small_disk)
    code, out, err = here("sweep", path, "--store", bench.store, "--launcher", "rehearsed")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err == f"error: store {bench.store}: cannot be written: Read-only file system\n"
    code, out, err = here("report", "--store", bench.store, "--format", "json")
    assert code == 0 and len(json.loads(out)) == TRIALS, "it can be read all the same"


OCCUPY = """
import socket, subprocess, sys
first, last = map(int, sys.argv[1].split())
held = [socket.create_server(("", port)) for port in range(first, last + 1)]
sys.exit(subprocess.run(sys.argv[2:]).returncode)
"""
PORTS = "40000 40099"


@NEEDS_ROOT
@pytest.mark.full
def test_every_port_taken(bench: Bench) -> None:
    """All ports that the kernel may give are taken by another process; once they are free the same command goes on."""
    base = BASE | {"parallelism": "ddp", "world_size": 2}
    path = bench.write({"name": "ports", "base": base | {"batch_size": 2}})
    with host(bench.folder, shm="1m", ports=PORTS) as small:
        bench.before = [*small.before, sys.executable, "-c", OCCUPY, PORTS]
        code, out, err = bench.sweep(path)
        assert bench.wait_gone() == []
        assert code == 75 and "Traceback" not in out + err, err
        (record,) = bench.records()
        assert record["status"] == "interrupted", "it is no fault of the trial, which is run again"
        assert "Address already in use" in record["reason"] and "\n" not in record["reason"], record["reason"]
        assert record["reason"] in err.splitlines()[-1]
        bench.before = small.before
        assert bench.sweep(path)[0] == 0
        assert [record["status"] for record in bench.records()] == ["interrupted", "ok"]
    assert small.left.read_text() == "", "nothing is left in shared memory, and no port once its holder has ended"
