"""How fast cores and a CUDA device run while a training steps, and whether heat holds them back."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from .files import text_of
from .samples import Clocks

CPUS = Path("/sys/devices/system/cpu")


class ClockLog:
    """Readings of clocks."""

    def __init__(self) -> None:
        self._cpu_mhz, self._device_mhz, self._device_c = list[float](), list[int](), list[int]()
        self._throttled: list[int] = []

    def look(self, device: int | None) -> None:
        """Read them now; `device`: the number of the CUDA device that this process computes on."""
        cores = [CPUS / f"cpu{core}" for core in os.sched_getaffinity(0)]
        if speeds := _numbers(core / "cpufreq" / "scaling_cur_freq" for core in cores):
            self._cpu_mhz.append(max(speeds) / 1000)
        counts = [core / "thermal_throttle" / name for core in cores for name in THROTTLED]
        if held_back := _numbers(counts):
            self._throttled.append(sum(held_back))
        if device is not None:
            cuda: Any = sys.modules["torch"].cuda
            with suppress(Exception):  # by NVML, which is not everywhere
                self._device_mhz.append(cuda.clock_rate(device))
                self._device_c.append(cuda.temperature(device))

    def told(self) -> Clocks | None:
        """What was read; None where nothing could be."""
        found = Clocks(
            median(self._cpu_mhz) if self._cpu_mhz else None,
            self._throttled[-1] - self._throttled[0] if self._throttled else None,
            median(self._device_mhz) if self._device_mhz else None,
            max(self._device_c, default=None),
        )
        return found if found != Clocks() else None


THROTTLED = ("core_throttle_count", "package_throttle_count")
"""What the kernel counts of a core each time that it holds it, or its package, back for heat."""


def _numbers(paths: Any) -> list[int]:
    """The numbers in files, of those that are there."""
    return [int(text) for path in paths if (text := text_of(path)).isdecimal()]
