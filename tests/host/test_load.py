"""Facts of the moment, read from made-up kernels."""

import json
import os
from pathlib import Path

import psutil
import pytest

from benchsuite.host.environment import environment
from benchsuite.host.load import cpu_limit_mhz, cpu_mhz, memory_bytes, moment
from benchsuite.inside.clocks import throttle_count


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_clocks_are_those_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    for core, khz in enumerate([4_000_000, 2_100_000, 4_000_000, 3_400_000]):
        write(tmp_path / f"cpu{core}/cpufreq/scaling_cur_freq", khz)
        write(tmp_path / f"cpu{core}/cpufreq/scaling_max_freq", khz + 100_000)
    assert cpu_mhz(tmp_path) == 3400.0 and cpu_limit_mhz(tmp_path) == 3500.0


def test_a_virtual_machine_tells_its_clock_in_cpuinfo(tmp_path: Path) -> None:
    write(tmp_path / "cpuinfo", "model name\t: x\ncpu MHz\t\t: 2596.124\ncpu MHz\t\t: 2700.5")
    assert cpu_mhz(tmp_path, tmp_path / "cpuinfo") == 2700.5
    assert cpu_mhz(tmp_path, tmp_path / "nowhere") is None and cpu_limit_mhz(tmp_path) is None


def test_throttling_is_counted_over_cores_and_packages(tmp_path: Path) -> None:
    assert throttle_count(tmp_path) is None, "not told is not zero"
    for core in range(4):
        write(tmp_path / f"cpu{core}/thermal_throttle/core_throttle_count", 10**core)
        write(tmp_path / f"cpu{core}/thermal_throttle/package_throttle_count", 5)
    assert throttle_count(tmp_path) == 10 + 1000 + 5 + 5


def test_memory_of_a_control_group_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "groups", "0::/job/step")
    write(tmp_path / "job/memory.max", 1_000_000)
    write(tmp_path / "job/memory.current", 900_000)
    write(tmp_path / "job/memory.stat", "anon 600000\ninactive_file 250000")
    write(tmp_path / "job/step/memory.max", "max")
    write(tmp_path / "job/step/memory.current", 1)
    assert memory_bytes(tmp_path, tmp_path / "groups") == (350_000, 1_000_000)


def test_memory_of_a_control_group_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "groups", "5:cpu:/other\n4:memory:/job\n0::/")
    write(tmp_path / "memory/memory.limit_in_bytes", 9223372036854771712)
    write(tmp_path / "memory/memory.usage_in_bytes", 5)
    write(tmp_path / "memory/job/memory.limit_in_bytes", 2_000_000)
    write(tmp_path / "memory/job/memory.usage_in_bytes", 2_500_000)
    write(tmp_path / "memory/job/memory.stat", "total_inactive_file 100000\ninactive_file 7")
    assert memory_bytes(tmp_path, tmp_path / "groups") == (0, 2_000_000)


def test_without_control_groups_memory_is_the_hosts(tmp_path: Path) -> None:
    available, total = memory_bytes(tmp_path, tmp_path / "none")
    assert total == psutil.virtual_memory().total and 0 < available <= total


def test_every_environment_tells_the_moment() -> None:
    found = environment()["moment"]
    assert found.keys() == moment().keys() and json.loads(json.dumps(found)) == found
    assert found["load_average_5min"] >= 0 and isinstance(found["users"], list)
