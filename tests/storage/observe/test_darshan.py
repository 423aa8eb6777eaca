"""Darshan's logs as I/O profiles: logs that PyDarshan ships, of real runs, and one of a run here where Darshan is."""

import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.results.report.io_profile import lines
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe.darshan import profile_of_log

darshan = pytest.importorskip("darshan", reason="no PyDarshan: pip install 'benchsuite[darshan]'")


def shipped(name: str) -> Path:
    """A log that PyDarshan has for its own tests."""
    return Path(str(importlib.resources.files("darshan"))) / "tests" / "input" / name


def test_a_shared_file_of_2048_ranks() -> None:
    profile = profile_of_log(shipped("sample.darshan"))
    written = profile["operations"]["write"]
    assert (profile["by"], profile["ranks"], profile["seconds"]) == ("darshan", 2048, 117.0)
    assert (written["count"], written["bytes"], written["p99_s"]) == (16_402, 2_199_023_259_968, None)
    assert (profile["bytes"]["seen"], profile["read_sizes"]) == (0, {})
    assert (profile["files"]["distinct"], profile["files"]["opens"]) == (1, 2049)
    assert profile["sequential_fraction"] is None
    assert any("by Darshan" in line for line in lines(profile))


def test_reads_in_order() -> None:
    log = next(shipped("..").resolve().parent.glob("examples/darshan-graph/pq_app_readAB_writeC*.darshan"))
    profile = profile_of_log(log)
    read = profile["operations"]["read"]
    assert (read["count"], read["bytes"], profile["bytes"]["seen"]) == (40, 20_000, 20_000)
    assert profile["order"] == {"first": 4, "onward": 36, "elsewhere": 0}
    assert profile["read_sizes"] == {"100 to 1K B": 40}
    assert profile["files"]["reads_per_file"] == 5.0


def test_the_files_of_one_folder(tmp_path: Path) -> None:
    log = shipped("sample-dxt-simple.darshan")
    report = darshan.DarshanReport(str(log), read_all=True)
    table = report.records["POSIX"].to_df()["counters"]
    names = [Path(report.name_records[number]) for number in table["id"]]
    folder = names[0].parent
    below = [name.is_relative_to(folder) for name in names]
    files = profile_of_log(log, folder)["files"]
    assert files["opens"] == table["POSIX_OPENS"][below].sum() > 0
    assert files["listed"] == len({name for name in names if name.is_relative_to(folder)})
    with pytest.raises(DatasetError, match="no POSIX counters of files below"):
        profile_of_log(log, tmp_path)


def test_files_that_were_only_looked_at_are_not_used_ones() -> None:
    files = profile_of_log(shipped("noposixopens.darshan"))["files"]
    assert files["listed"] > 0
    assert (files["distinct"], files["opens"], files["opens_per_file"]) == (0, 0, None)


def test_a_log_without_posix_counters() -> None:
    with pytest.raises(DatasetError, match="no POSIX counters"):
        profile_of_log(shipped("noposix.darshan"))


def test_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "x.darshan").write_bytes(b"?" * 5000)
    with pytest.raises(DatasetError, match="PyDarshan cannot read it"):
        profile_of_log(tmp_path / "x.darshan")


def test_a_log_that_is_not_there() -> None:
    with pytest.raises(DatasetError, match="no such file"):
        profile_of_log(Path("/nowhere/x.darshan"))


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.darshan").write_bytes(b"?")
    monkeypatch.setitem(sys.modules, "darshan", None)
    with pytest.raises(DatasetError, match=r"benchsuite\[darshan\]"):
        profile_of_log(tmp_path / "x.darshan")


READS = """
import os, sys
for turn in range(3):
    for name in sys.argv[1:]:
        descriptor = os.open(name, os.O_RDONLY)
        os.pread(descriptor, 4096, 0), os.pread(descriptor, 8192, 4096), os.pread(descriptor, 512, 100)
        os.close(descriptor)
"""


def test_a_real_log(tmp_path: Path) -> None:
    """A run of our own under Darshan's library without MPI, which DARSHAN_LIBRARY names."""
    library = os.environ.get("DARSHAN_LIBRARY")
    if not library:
        pytest.skip("no Darshan: DARSHAN_LIBRARY=.../libdarshan.so")
    names = [tmp_path / f"{number}" for number in range(4)]
    for name in names:
        name.write_bytes(bytes(20_000))
    log = tmp_path / "log.darshan"
    told = {"LD_PRELOAD": library, "DARSHAN_ENABLE_NONMPI": "1", "DARSHAN_LOGFILE": str(log)}
    subprocess.run([os.path.realpath(sys.executable), "-c", READS, *names], env={**os.environ, **told}, check=True)
    profile = profile_of_log(log, tmp_path)
    assert profile["operations"]["open"]["count"] == 12
    assert profile["operations"]["read"]["count"] == 36
    assert profile["operations"]["read"]["bytes"] == 12 * (4096 + 8192 + 512)
    assert profile["order"] == {"first": 12, "onward": 12, "elsewhere": 12}
    assert (profile["files"]["distinct"], profile["files"]["most_opens"]) == (4, 3)
