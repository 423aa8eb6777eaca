"""What NVML says of the CUDA devices at one moment: clocks, memory, processes, and why clocks are held back."""

import os
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
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    return [_gpu(number, handle) for number, handle in enumerate(handles) if _is_visible(number, handle, visible)]


def _is_visible(number: int, handle: Any, visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names a device, by its number or the beginning of its UUID."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",") if name.strip()]
    uuid = str(asked(pynvml.nvmlDeviceGetUUID, handle) or "")
    return any(name == str(number) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)


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
