"""What the kernel holds back, from files as it writes them: of control groups of both versions, and in a container."""

from pathlib import Path

import pytest

from benchsuite.inside.pressure import group_cpus, pressure

STAT = "usage_usec 9\nnr_periods 40\nnr_throttled 10\nthrottled_usec 5\n"


def host(folder: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup with these files."""
    proc, groups = folder / "proc", folder / "cgroup"
    for name, text in {"proc/self/cgroup": cgroup, **{f"cgroup/{name}": text for name, text in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return proc, groups


@pytest.mark.parametrize(
    ("cgroup", "files", "periods"),
    [
        ("0::/job/step\n", {"job/step/cpu.stat": STAT}, (40, 10)),
        ("0::/job/step\n", {"job/cpu.stat": STAT}, (40, 10)),
        ("3:cpu,cpuacct:/job\n0::/\n", {"cpu/job/cpu.stat": STAT}, (40, 10)),
        ("0::/\n", {"cpu.stat": STAT}, (40, 10)),
        ("0::/../outside\n", {"cpu.stat": STAT}, (40, 10)),
        ("0::/job\n", {"job/cpu.stat": "usage_usec 9\n"}, (None, None)),
        ("", {}, (None, None)),
    ],
)
def test_periods_of_a_quota(
    tmp_path: Path, cgroup: str, files: dict[str, str], periods: tuple[int | None, ...]
) -> None:
    found = pressure(*host(tmp_path, cgroup, files))
    assert (found.quota_periods, found.throttled_periods, found.memory_s) == (*periods, None)


def test_waiting_for_memory(tmp_path: Path) -> None:
    proc, groups = host(tmp_path, "", {})
    (proc / "pressure").mkdir()
    (proc / "pressure" / "memory").write_text("some avg10=0.00 total=2500000\nfull avg10=0.00 total=1\n")
    assert pressure(proc, groups).memory_s == 2.5


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("0::/job/step\n", {"job/step/cpuset.cpus.effective": "0-2,5\n"}, {0, 1, 2, 5}),
        ("0::/job/step\n", {"job/cpuset.cpus.effective": "3\n"}, {3}),
        ("5:cpuset:/job\n0::/\n", {"cpuset/job/cpuset.effective_cpus": "0-1\n"}, {0, 1}),
        ("0::/\n", {"cpuset.cpus.effective": "\n"}, None),
        ("", {}, None),
    ],
)
def test_cores_of_the_control_group(tmp_path: Path, cgroup: str, files: dict[str, str], cpus: set[int] | None) -> None:
    assert group_cpus(*host(tmp_path, cgroup, files)) == cpus
