"""What this machine offers a trial: cores and devices, found without touching CUDA."""

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchsuite.inside.files import text_of


@dataclass(frozen=True)
class Machine:
    """Cores this process may use, and CUDA devices that torch could use; and on how many nodes there are as many."""

    cores: int
    cuda_devices: int
    nodes: int = 1
    elsewhere: bool = False
    """Whether it is another than this host, whose devices and packages then say nothing of it."""
    ranks_per_node: int | None = None
    """Ranks of a trial that a node takes, where a scheduler was asked for them."""
    memory_bytes: int | None = None
    """Memory of the node that has least; None: as this host has."""


def this_machine() -> Machine:
    """The machine this process runs on."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return Machine(min(cores, max(1, math.ceil(quota))) if quota else cores, len(device_ids()))


def device_ids() -> list[str]:
    """The devices that this process may use, by UUID: processes of one node may share them or have their own.

    Empty where torch can use none. Of a MIG device's instances CUDA gives a process the first one alone.
    """
    if not _has_cuda():
        return []
    with nvml() as handles:
        every = [_uuid(handle) for handle in handles]
    names = _visible()
    if names is None or not any(every):
        return [name for name in every if name]
    found = [(every[int(name)] if int(name) < len(every) else None) if name.isdigit() else name for name in names]
    ids = [name for name in found if name]
    return ids[:1] if any(name.startswith("MIG-") for name in ids) else ids


def _uuid(handle: Any) -> str | None:
    """A device's own name; None of one that is lost."""
    import pynvml

    try:
        return None if handle is None else str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError:
        return None


def cuda_capability() -> tuple[int, int] | None:
    """The least compute capability of the devices here; None where none is known."""
    import pynvml

    with nvml() as handles, suppress(pynvml.NVMLError):
        known = [pynvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles if handle is not None]
        return min((tuple(each) for each in known), default=None)
    return None


def lost_devices() -> int:
    """Devices that the driver counts and that do not answer: fallen off the bus, or stopped after an Xid."""
    with nvml() as handles:
        return handles.count(None)


def cpus_near(device_id: str) -> set[int]:
    """Cores that share a socket or memory with a device, by NVML; empty where it does not say."""
    import pynvml

    words = -(-os.sysconf("SC_NPROCESSORS_CONF") // 64)  # those that are offline, too
    with nvml():
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device_id)
            mask = pynvml.nvmlDeviceGetCpuAffinity(handle, words)
        except pynvml.NVMLError:
            return set()
    return {64 * word + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1}


def ranges_of(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes lists of cores: `0-3,8`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that the control group allows, as containers see it (cpu.max, or v1's cpu.cfs_*); None without limit."""
    older = (root / "cpu" / f"cpu.cfs_{part}_us" for part in ("quota", "period"))
    told = text_of(root / "cpu.max") or " ".join(map(text_of, older))
    found = re.fullmatch(r"(\d+) (\d+)", told)  # not `max`, nor -1
    return int(found[1]) / int(found[2]) if found else None


def _has_cuda() -> bool:
    """Whether torch is built for CUDA. Opens no CUDA context."""
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def _visible() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names; None where it is not set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]


@contextmanager
def nvml() -> Iterator[list[Any]]:
    """Start NVML and yield a handle of each NVIDIA device, None of one that is lost; none without NVML.

    It is ended again, since processes fork.
    """
    import pynvml

    handles: list[Any] = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            handles.append(None)
            with suppress(pynvml.NVMLError):
                handles[-1] = pynvml.nvmlDeviceGetHandleByIndex(number)
    try:
        yield handles
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
