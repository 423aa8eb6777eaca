"""The kernel's counters of a process, against reads whose size is known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.inside.processes import ProcessIO, process_io
from benchsuite.storage.observe.page_cache import evict, warm
from tests.storage.samples import PAGES_MAY_GO, file_system

SIZE = 8_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def grown(path: Path) -> ProcessIO:
    """What reading a file adds to this process's counters."""
    before = process_io(os.getpid())
    path.read_bytes()
    after = process_io(os.getpid())
    assert before is not None and after is not None
    return after.grown(before)


@PAGES_MAY_GO
def test_a_read_from_memory_is_no_read_from_storage(file: Path) -> None:
    warm([file])
    counted = grown(file)
    assert SIZE <= counted.read_bytes < SIZE * 1.01
    assert counted.storage_bytes < SIZE * 0.01


def test_a_read_after_eviction_is_one(file: Path) -> None:
    if file_system(file) in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory: nothing is read from storage there")
    evict([file])
    counted = grown(file)
    assert SIZE <= counted.read_bytes < SIZE * 1.01
    assert SIZE <= counted.storage_bytes < SIZE * 1.05


def test_another_process_can_be_watched(file: Path) -> None:
    code = f"open({str(file)!r}, 'rb').read(); print('read', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "read\n"
        counted = process_io(child.pid)
        child.communicate("\n")
    assert counted is not None and counted.read_bytes >= SIZE


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert process_io(child.pid) is None


def test_one_that_may_not_be_watched_has_none() -> None:
    if os.geteuid() != 0:
        if os.stat("/proc/1").st_uid == os.geteuid():
            pytest.skip("process 1 is this user's own, so it may be watched")
        counted = process_io(1)
    else:
        from tests.storage.observe.test_page_cache import as_nobody

        answer = as_nobody(lambda: process_io(os.getppid()))
        counted = None if answer == "None" else answer
    assert counted is None
