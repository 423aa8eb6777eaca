"""What devices do over a whole trial, once a second: power, clock, temperature and busy share.

An agent has a process of its own read them, from the launch of its ranks to their end. A device that is sick may keep
NVML waiting, which then holds up neither the agent nor a rank.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pynvml

from benchsuite.host.gpus import asked
from benchsuite.host.machine import nvml
from benchsuite.results.store.shapes import DEVICE_FIGURES, DeviceSamples

PERIOD_S = 1.0
MAX_SAMPLES = 3600
"""Samples of a device that are kept; of a longer trial they are taken evenly."""


def record(device_ids: Sequence[str], out: Path) -> NoReturn:
    """Read devices once a second and append a line to `out` each time, until this process is killed."""
    with nvml(), out.open("a", encoding="utf-8") as file:
        handles = [asked(pynvml.nvmlDeviceGetHandleByUUID, name) for name in device_ids]
        next_s = time.perf_counter()
        while True:
            file.write(json.dumps([time.perf_counter(), [reading(handle) for handle in handles]]) + "\n")
            file.flush()
            next_s += PERIOD_S
            time.sleep(max(0.0, next_s - time.perf_counter()))


def reading(handle: Any) -> list[float | None]:
    """What a device says now, in the order of DEVICE_FIGURES; None where it does not say."""
    if handle is None:
        return [None] * len(DEVICE_FIGURES)
    milliwatts = asked(pynvml.nvmlDeviceGetPowerUsage, handle)
    shares = asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return [
        None if milliwatts is None else milliwatts / 1000,
        asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        None if shares is None else shares.gpu / 100,
    ]


def recorded(device_ids: Sequence[str], out: Path, ahead_s: float = 0.0) -> list[DeviceSamples]:
    """What `record` has written: a row for each device, its moments less `ahead_s`. Empty where it wrote nothing.

    A line that was cut off as the process was killed is left out.
    """
    lines = out.read_text(encoding="utf-8").split("\n")[:-1] if out.is_file() else []
    every = -(-len(lines) // MAX_SAMPLES) or 1
    rows = [json.loads(line) for line in lines[::every]]
    return [_of_device(name, number, rows, ahead_s) for number, name in enumerate(device_ids) if rows]


def _of_device(name: str, number: int, rows: Sequence[Any], ahead_s: float) -> DeviceSamples:
    power, clock, temperature, busy = zip(*(devices[number] for _, devices in rows), strict=True)
    return {
        "device_uuid": name,
        "at_s": [round(at_s - ahead_s, 3) for at_s, _ in rows],
        "power_w": [*power],
        "sm_mhz": [*clock],
        "temperature_c": [*temperature],
        "busy_fraction": [*busy],
    }
