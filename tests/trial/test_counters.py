"""What a rank's devices say beside its steps, all of them in data_parallel; with stand-ins for CUDA and NVML."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.trial import costs, counters
from benchsuite.trial.counters import Counters
from benchsuite.trial.setup import devices_of
from tests.helpers.made import made_spec

ME = RankIdentity(0, 1, 0, Path("."), 0.0, device_index=0)


class Device:
    """NVML's counters of a device, by its number."""

    def __init__(self, uuid: str) -> None:
        self.number, self.used = int(uuid.removeprefix("GPU-")), 1000

    def memory_used_bytes(self) -> int:
        self.used += 100 * (1 + self.number)
        return self.used

    def begin(self) -> Callable[[], dict[str, float]]:
        counted = {"energy_j": 10.0 + self.number, "busy_s": 1.0 + self.number, "power_capped_s": 3.0 - self.number}
        return lambda: counted | ({"nvlink_sent_bytes": 1.0} if self.number else {})


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "DeviceCounters", Device)
    monkeypatch.setattr(counters, "device_libraries", dict)
    for name, answer in {
        "device_count": lambda: 2,
        "get_device_properties": lambda device: SimpleNamespace(uuid=device.index),
        "max_memory_reserved": lambda device: 50 + device.index,
        "max_memory_allocated": lambda device: 40 + device.index,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)


def test_data_parallel_counts_all_its_devices() -> None:
    spec = made_spec(device="cuda", parallelism="data_parallel")
    mine = Counters(spec, ME)
    assert mine.begin()() == {"energy_j": 21.0, "busy_s": 1.5, "power_capped_s": 3.0}, "of all, mean, worst"
    told = mine.of_device()
    assert (told["reserved_memory_bytes"], told["device_memory_bytes"]) == (101, 300)
    assert costs.peak_memory(devices_of(spec, ME)) == 81


def test_others_count_the_one_device_that_is_theirs() -> None:
    spec = made_spec(device="cuda")
    mine = Counters(spec, ME)
    assert mine.begin()()["energy_j"] == 10.0
    assert mine.of_device()["reserved_memory_bytes"] == 50 and costs.peak_memory(devices_of(spec, ME)) == 40
    assert devices_of(made_spec(), ME) == []
