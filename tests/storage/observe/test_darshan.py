"""Darshan's logs as I/O profiles: what darshan-parser prints, and a log of a real run where Darshan is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.results.report.io_profile import lines
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe.darshan import _profile, parsed, profile_of_log

COUNTERS = {
    "POSIX_OPENS": "3",
    "POSIX_STATS": "-1",
    "POSIX_READS": "9",
    "POSIX_SEEKS": "0",
    "POSIX_BYTES_READ": "38400",
    "POSIX_CONSEC_READS": "3",
    "POSIX_SIZE_READ_100_1K": "3",
    "POSIX_SIZE_READ_1K_10K": "6",
    "POSIX_SIZE_READ_1G_PLUS": "0",
    "POSIX_F_READ_TIME": "0.030",
    "POSIX_F_META_TIME": "0.010",
    "POSIX_F_MAX_READ_TIME": "0.004",
}


def log_text(names: list[str]) -> list[str]:
    """What darshan-parser prints of files with equal counters."""
    head = ["# darshan log version: 3.41", "# nprocs: 2", "# run time: 1.5000"]
    return head + [
        f"POSIX\t{rank}\t17\t{counter}\t{value}\t{name}\t/\text4"
        for rank, name in enumerate(names)
        for counter, value in COUNTERS.items()
    ] + ["STDIO\t0\t18\tSTDIO_OPENS\t5\t/data/a\t/\text4"]  # fmt: skip


def test_counters_become_a_profile() -> None:
    files, processes, seconds = parsed(log_text(["/data/a", "/data/b"]))
    assert (set(files), processes, seconds) == ({"/data/a", "/data/b"}, 2, 1.5)
    profile = _profile(files, processes, seconds)
    read = profile["operations"]["read"]
    assert (read["count"], read["bytes"], read["seconds"], read["max_s"], read["p99_s"]) == (
        18, 76800, pytest.approx(0.06), 0.004, None
    )  # fmt: skip
    assert set(profile["operations"]) == {"open", "read"}
    assert profile["read_sizes"] == {"100 to 1K B": 6, "1K to 10K B": 12}
    assert profile["order"] == {"first": 6, "onward": 6, "elsewhere": 6}
    assert profile["metadata_fraction"] == pytest.approx(0.25)
    assert (profile["files"]["distinct"], profile["files"]["opens_per_file"]) == (2, 3)
    assert any("by Darshan" in line for line in lines(profile))


def test_files_that_were_only_looked_at_are_not_used_ones() -> None:
    looked = [
        f"POSIX\t0\t18\t{name}\t{value}\t/data/c\t/\text4" for name, value in (("POSIX_OPENS", 0), ("POSIX_STATS", 4))
    ]
    files = _profile(*parsed([*log_text(["/data/a", "/data/b"]), *looked]))["files"]
    assert (files["listed"], files["distinct"], files["opens_per_file"], files["reads_per_file"]) == (3, 2, 3, 9)


def test_a_log_that_is_not_there() -> None:
    with pytest.raises(DatasetError, match="no such file"):
        profile_of_log(Path("/nowhere/x.darshan"))


def test_without_anything_to_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.darshan").write_bytes(b"?")
    monkeypatch.setenv("PATH", "/nowhere")
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
    """Darshan's library without MPI: DARSHAN_LIBRARY names it, darshan-parser is on the PATH."""
    library = os.environ.get("DARSHAN_LIBRARY")
    if not library or shutil.which("darshan-parser") is None:
        pytest.skip("no Darshan: DARSHAN_LIBRARY=.../libdarshan.so and darshan-parser on the PATH")
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
