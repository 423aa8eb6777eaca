"""What NVML says of CUDA devices: clocks, memory, processes, why clocks are held back, and what it counts."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import pynvml

HELD_BACK = {
    "nvmlClocksEventReasonHwSlowdown": "slowed down by its hardware",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot (driver)",
    "nvmlClocksEventReasonHwThermalSlowdown": "too hot (hardware)",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "short of power (brake)",
}
"""Constants of NVML's bit mask that mean lost clocks, in words. Idling and caps that were set are none of them."""


@dataclass(frozen=True)
class Gpu:
    """One device, as it was at one moment; None where NVML does not say."""

    index: int
    memory_used_bytes: int | None
    memory_bytes: int | None
    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None
    held_back: tuple[str, ...]
    """Why its clocks were below what they could be."""
    processes: tuple[tuple[int, int | None], ...]
    """Process ids, with the bytes that each holds."""

    def facts(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return asdict(self) | {"held_back": list(self.held_back), "processes": [list(held) for held in self.processes]}


@cache
def _started() -> bool:
    """Start NVML once, for as long as this process lives."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def gpus(visible: str | None = os.environ.get("CUDA_VISIBLE_DEVICES")) -> list[Gpu]:
    """The devices that CUDA may use; empty where there is no NVML."""
    if not _started():
        return []
    try:
        handles = [asked(pynvml.nvmlDeviceGetHandleByIndex, number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    alive = [(number, handle) for number, handle in enumerate(handles) if handle is not None]
    return [_gpu(number, handle) for number, handle in alive if _is_visible(number, handle, visible)]


def _is_visible(number: int, handle: Any, visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names a device, by number, by the beginning of its UUID, or a MIG instance of it."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",") if name.strip()]
    uuid = str(asked(pynvml.nvmlDeviceGetUUID, handle) or "")
    named = [_whole_device(name) for name in names]
    return any(name == str(number) or (name.startswith("GPU-") and uuid.startswith(name)) for name in named)


def _whole_device(name: str) -> str:
    """The UUID of the device that a MIG instance is part of; other names as they are."""
    if not name.startswith("MIG-"):
        return name
    instance = asked(pynvml.nvmlDeviceGetHandleByUUID, name)
    whole = asked(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, instance) if instance else None
    return str(asked(pynvml.nvmlDeviceGetUUID, whole) or name) if whole else name


def asked(function: Any, *arguments: Any) -> Any:
    """What NVML answers; None where this device or driver cannot."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _gpu(number: int, handle: Any) -> Gpu:
    memory = asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    reasons = asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    running = asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return Gpu(
        number,
        int(memory.used) if memory else None,
        int(memory.total) if memory else None,
        asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        asked(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        tuple(words for name, words in HELD_BACK.items() if reasons & getattr(pynvml, name)),
        tuple((int(each.pid), each.usedGpuMemory and int(each.usedGpuMemory)) for each in running),
    )


COUNTED = {
    "energy_j": ("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
    "power_capped_s": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP", 1e-9),
    "power_brake_s": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 1e-9),
    "too_hot_driver_s": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", 1e-9),
    "too_hot_hardware_s": ("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 1e-9),
    "nvlink_sent_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", 1024),
    "nvlink_received_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024),
}
"""Counters that only grow, by NVML's name, and what one of its units is.

PCIe's are left out: they have 32 bits and go round in a tenth of a second at the rate of its fifth generation.
"""
ALL_LINKS = 0xFFFFFFFF


class DeviceCounters:
    """What one device counts while work runs on it. What it does not count is left out."""

    def __init__(self, uuid: str) -> None:
        self._handle = asked(pynvml.nvmlDeviceGetHandleByUUID, uuid) if _started() else None

    def memory_used_bytes(self) -> int | None:
        """Bytes in use on the device, by everyone."""
        memory = asked(pynvml.nvmlDeviceGetMemoryInfo, self._handle) if self._handle else None
        return int(memory.used) if memory else None

    def begin(self) -> Callable[[], dict[str, float]]:
        """Begin to count; calling what is returned gives what was counted since."""
        if self._handle is None:
            return dict
        before, began_us = self._read(), time.time_ns() // 1000

        def end() -> dict[str, float]:
            after = self._read()
            found = {name: after[name] - value for name, value in before.items() if name in after}
            busy = self._busy_fraction(began_us)
            return found if busy is None else found | {"busy_s": busy * (time.time_ns() / 1e3 - began_us) / 1e6}

        return end

    def _read(self) -> dict[str, float]:
        known = {
            name: (getattr(pynvml, field), unit) for name, (field, unit) in COUNTED.items() if hasattr(pynvml, field)
        }
        fields = [(field, ALL_LINKS if name.startswith("nvlink") else 0) for name, (field, _) in known.items()]
        answers = asked(pynvml.nvmlDeviceGetFieldValues, self._handle, fields) or []
        return {
            name: answer.value.ullVal * unit
            for (name, (_, unit)), answer in zip(known.items(), answers, strict=False)
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
        }

    def _busy_fraction(self, since_us: int) -> float | None:
        """Mean of the driver's own samples of whether a kernel ran; None where it took none meanwhile."""
        found = asked(pynvml.nvmlDeviceGetSamples, self._handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        shares = [each.sampleValue.uiVal / 100 for each in found[1] if each.timeStamp > since_us] if found else []
        return sum(shares) / len(shares) if shares else None
