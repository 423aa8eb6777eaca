"""What this machine offers a trial: cores and devices, found without touching CUDA."""

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Machine:
    """Cores this process may use, and CUDA devices that torch could use."""

    cores: int
    cuda_devices: int


def this_machine() -> Machine:
    """The machine this process runs on."""
    return Machine(len(os.sched_getaffinity(0)), _cuda_devices())


def _cuda_devices() -> int:
    """Devices that NVML and CUDA_VISIBLE_DEVICES allow; 0 where torch has no CUDA. Opens no CUDA context."""
    import pynvml

    try:
        if version("torch").endswith("+cpu"):
            return 0
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except (pynvml.NVMLError, PackageNotFoundError):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
