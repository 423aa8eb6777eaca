"""Clocks of cores from the kernel's files, as a machine of its own has them; of a device as torch tells them."""

import os
from pathlib import Path

import pytest
import torch

from benchsuite.inside import clocks
from benchsuite.inside.clocks import ClockLog
from benchsuite.inside.samples import Clocks


@pytest.fixture
def cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(clocks, "CPUS", tmp_path)
    return tmp_path


def write(cores: Path, khz: int, throttled: int) -> None:
    for core in os.sched_getaffinity(0):
        for name, number in (("cpufreq/scaling_cur_freq", khz), ("thermal_throttle/core_throttle_count", throttled)):
            path = cores / f"cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n")


def test_nothing_is_told_where_nothing_can_be_read(cores: Path) -> None:
    log = ClockLog()
    log.look(None)
    log.look(0)  # no device here
    assert log.told() is None


def test_the_median_of_cores_and_how_often_heat_held_them_back_meanwhile(cores: Path) -> None:
    log = ClockLog()
    for khz, throttled in ((3_000_000, 7), (1_200_000, 7), (1_000_000, 9)):
        write(cores, khz, throttled)
        log.look(None)
    assert log.told() == Clocks(cpu_mhz=1200.0, cpu_throttled=2 * len(os.sched_getaffinity(0)))


def test_a_device_is_asked_by_its_number(cores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    temperatures = iter((61, 84))
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: asked.append(("clock", device)) or 1215)
    monkeypatch.setattr(torch.cuda, "temperature", lambda device: asked.append(("heat", device)) or next(temperatures))
    log = ClockLog()
    log.look(3)
    log.look(3)
    assert log.told() == Clocks(device_mhz=1215, device_c=84)
    assert asked == [("clock", 3), ("heat", 3)] * 2
