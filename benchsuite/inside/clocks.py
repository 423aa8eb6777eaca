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
        mhz, throttled = most_mhz("scaling_cur_freq", CPUS), throttle_count(CPUS)
        self._cpu_mhz += [] if mhz is None else [mhz]
        self._throttled += [] if throttled is None else [throttled]
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


def most_mhz(name: str, root: Path = CPUS) -> float | None:
    """The largest of a file's numbers over the cores that this process may use, from kHz to MHz."""
    found = _of_cores(root, f"cpufreq/{name}")
    return max((number / 1000 for number in found if number), default=None)


def throttle_count(root: Path = CPUS) -> int | None:
    """How often a core, or the package it is in, was held back for heat; None where the kernel does not count."""
    found = _of_cores(root, *(f"thermal_throttle/{name}_throttle_count" for name in ("core", "package")))
    return sum(found) if found else None


def _of_cores(root: Path, *names: str) -> list[int]:
    """The numbers in these files of each core, of those that are there."""
    texts = (text_of(root / f"cpu{core}" / name) for core in os.sched_getaffinity(0) for name in names)
    return [int(text) for text in texts if text.isdecimal()]
