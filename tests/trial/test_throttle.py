"""The slow shared file system of benchmarks and tests: what it asks of the kernel, by both kinds of cgroups."""

import os
from pathlib import Path

import pytest

from bench import throttle
from bench.throttle import CannotThrottle, own_group, throttled


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up roots of cgroups, of which none is there yet, and a disk 8:16."""
    monkeypatch.setattr(throttle, "V1", tmp_path / "blkio")
    monkeypatch.setattr(throttle, "V2", tmp_path / "unified")
    monkeypatch.setattr(throttle, "device_of", lambda path: "8:16")
    return tmp_path


@pytest.mark.parametrize(
    ("root", "file", "text"),
    [
        ("blkio", "blkio.throttle.read_bps_device", "8:16 5000000"),
        ("unified", "io.max", "8:16 rbps=5000000"),
    ],
)
def test_the_limit_is_set_before_a_process_is_put_under_it(roots: Path, root: str, file: str, text: str) -> None:
    (roots / root).mkdir()
    group = roots / root / f"benchsuite-{os.getpid()}"
    with throttled(roots, 5_000_000):
        assert (group / file).read_text() == text
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        (group / "cgroup.procs").write_text("17\n18\n")
    assert (roots / root / "cgroup.procs").read_text() == "18", "each process goes back, one write for one process"


def test_where_there_are_no_cgroups_it_is_said(roots: Path) -> None:
    with pytest.raises(CannotThrottle, match=r"reads cannot be limited by .*unified/benchsuite-"), throttled(roots, 1):
        pass


@pytest.mark.parametrize(
    ("root", "text", "found"),
    [
        ("blkio", "4:blkio:/user/me\n0::/init.scope\n", "blkio/user/me"),
        ("blkio", "7:blkio,net_cls:/user/me\n", "blkio/user/me"),
        ("blkio", "4:blkio:/gone\n", "blkio"),
        ("blkio", "0::/init.scope\n", "blkio"),
        ("unified", "0::/user/me\n", "unified/user/me"),
        ("unified", "4:blkio:/user/me\n", "unified"),
    ],
)
def test_a_process_goes_back_to_where_it_was(roots: Path, root: str, text: str, found: str) -> None:
    (roots / root / "user" / "me").mkdir(parents=True)
    assert own_group(roots / root, text) == roots / found
