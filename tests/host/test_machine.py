"""What this machine offers: cores it may use, and devices that torch can use, without touching CUDA."""

import os
from pathlib import Path

import pynvml
import pytest

from benchsuite.host import machine
from benchsuite.host.machine import cpu_quota, cpus_near, device_ids, lost_devices, ranges_of, this_machine


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML that sees four devices, a torch that has CUDA, and nothing hidden."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda number: number)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}{handle}")
    monkeypatch.setattr(machine, "version", lambda _package: "2.13.0+cu126")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_cores_are_those_this_process_may_use():
    assert this_machine().cores == len(os.sched_getaffinity(0))


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("0,1", 2), ("0", 1), ("", 0), ("-1", 0), ("0,1,2,3,4,5", 4), ("GPU-8f0a,GPU-11", 2), ("MIG-5a", 1)],
)
def test_devices_are_those_not_hidden(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().cuda_devices == count


@pytest.mark.usefixtures("four_devices")
def test_a_cpu_build_of_torch_uses_no_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "version", lambda _package: "2.13.0+cpu")
    assert this_machine().cuda_devices == 0


@pytest.mark.usefixtures("four_devices")
def test_no_driver_is_no_device(monkeypatch: pytest.MonkeyPatch):
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert this_machine().cuda_devices == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
        ({"cpu.max": "what\n"}, None),
    ],
)
def test_cores_that_a_control_group_allows(tmp_path: Path, files: dict[str, str], cores: float | None):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ["GPU-00", "GPU-22", "GPU-33"]),
        ("1,2", ["GPU-22"]),
        ("3,0", ["GPU-33", "GPU-00"]),
        ("MIG-5a,MIG-5b", ["MIG-5a"]),
    ],
)
def test_a_device_that_is_lost_is_left_out(monkeypatch: pytest.MonkeyPatch, visible: str | None, ids: list[str]):
    """Of a node with a broken device the others can be used, and a trial on its CPUs runs."""

    def handle(number: int) -> int:
        if number == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return number

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (device_ids(), lost_devices()) == (ids, 1)


@pytest.mark.usefixtures("four_devices")
def test_cores_near_a_device_are_those_of_its_mask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sysconf", lambda _name: 96)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda name: name)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", lambda _handle, words: [0b1110, 1 << 8][:words])
    assert cpus_near("GPU-22") == {1, 2, 3, 72}
    assert ranges_of(cpus_near("GPU-22")) == "1-3,72"

    def unknown(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", unknown)
    assert (cpus_near("GPU-22"), ranges_of(set())) == (set(), "")
