"""What a device counts, by a made-up NVML: differences, what it does not count, and how busy it was."""

import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from benchsuite.host import gpus
from benchsuite.host.gpus import DeviceCounters

UNSUPPORTED = ("nvlink_sent_bytes", "nvlink_received_bytes")


class Nvml:
    """Counters that grow by one of their units a look."""

    def __init__(self) -> None:
        self.looks = 0
        fields = {
            name: getattr(pynvml, field, None) for name, (field, _) in gpus.COUNTED.items()
        }  # older ones lack some
        self.names = {field: name for name, field in fields.items() if field is not None}

    def values(self, handle: Any, fields: list[tuple[int, int]]) -> list[Any]:
        self.looks += 1
        return [
            SimpleNamespace(
                nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED if self.names[field] in UNSUPPORTED else pynvml.NVML_SUCCESS,
                value=SimpleNamespace(ullVal=10**9 * self.looks),
            )
            for field, _ in fields
        ]

    def samples(self, handle: Any, kind: int, since_us: int) -> tuple[int, list[Any]]:
        now_us = time.time_ns() // 1000 + 1000
        old = SimpleNamespace(timeStamp=since_us, sampleValue=SimpleNamespace(uiVal=100))
        return 0, [old, *(SimpleNamespace(timeStamp=now_us, sampleValue=SimpleNamespace(uiVal=v)) for v in (40, 60))]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setattr(gpus, "_started", lambda: True)
    for name, function in {
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetFieldValues": made.values,
        "nvmlDeviceGetSamples": made.samples,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5),
    }.items():
        monkeypatch.setattr(pynvml, name, function)
    return made


def test_counters_are_differences_in_units(nvml: Nvml) -> None:
    end = DeviceCounters("GPU-1").begin()
    found = end()
    assert found["energy_j"] == pytest.approx(1e6)
    assert found.get("power_capped_s", 1.0) == pytest.approx(1.0)
    assert not found.keys() & {*UNSUPPORTED}
    assert 0 < found["busy_s"] < 1
    assert DeviceCounters("GPU-1").memory_used_bytes() == 5


def test_a_device_that_is_lost_counts_nothing(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    for name in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetSamples", "nvmlDeviceGetMemoryInfo"):
        monkeypatch.setattr(pynvml, name, lost)
    counters = DeviceCounters("GPU-1")
    assert counters.begin()() == {} and counters.memory_used_bytes() is None
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lost)
    counters = DeviceCounters("GPU-1")
    assert counters.begin()() == {} and counters.memory_used_bytes() is None
