"""What this machine offers a trial: cores and devices, found without touching CUDA."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Cores this process may use, and CUDA devices that torch could use; and on how many nodes there are as many."""

    cores: int
    cuda_devices: int
    nodes: int = 1


def this_machine() -> Machine:
    """The machine this process runs on."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return Machine(min(cores, max(1, math.ceil(quota))) if quota else cores, _cuda_devices())


def device_ids() -> list[str]:
    """The devices that this process may use, by UUID: processes of one node may share them or have their own.

    Empty where torch can use none.
    """
    import pynvml

    if not _cuda_devices():
        return []
    with nvml() as count:
        every = [str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))) for number in range(count)]
    names = _visible()
    if names is None:
        return every
    return [every[int(name)] if name.isdigit() and int(name) < len(every) else name for name in names]


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the control group allows, as containers see it (cpu.max, or v1's cpu.cfs_*); None without limit."""
    older = (root / "cpu" / f"cpu.cfs_{part}_us" for part in ("quota", "period"))
    told = text_of(root / "cpu.max") or " ".join(map(text_of, older))
    found = re.fullmatch(r"(\d+) (\d+)", told)  # not `max`, nor -1
    return int(found[1]) / int(found[2]) if found else None


def text_of(path: Path) -> str:
    """A file's text without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cuda_devices() -> int:
    """Devices that NVML and CUDA_VISIBLE_DEVICES allow; 0 where torch has no CUDA. Opens no CUDA context."""
    try:
        if version("torch").endswith("+cpu"):
            return 0
    except PackageNotFoundError:
        return 0
    names = _visible()
    with nvml() as count:
        return count if names is None else min(count, len(names))


def _visible() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names; None where it is not set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]


@contextmanager
def nvml() -> Iterator[int]:
    """Start NVML and yield how many NVIDIA devices it sees, 0 without it; it is ended again, since processes fork."""
    import pynvml

    count = 0
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    try:
        yield count
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
