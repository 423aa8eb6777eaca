"""What a rank's device says of itself beside its steps: energy, clocks held back, memory, versions of its libraries."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import torch

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.energy import counted_j
from benchsuite.host.gpus import DeviceCounters
from benchsuite.trial.setup import devices_of


class Counters:
    """Counts for one rank: its CUDA devices, or, of ranks on a CPU, the first of a node all its sockets' energy."""

    def __init__(self, spec: TrialSpec, me: RankIdentity, cpus: str | None = None) -> None:
        """Look at the device before anything of this rank lies on it; `cpus` are those that it was bound to."""
        self._devices = devices_of(spec, me)
        self._is_first, self._cpus = me.rank == 0, cpus
        self._uuids = [uuid_of(device) for device in self._devices]
        self._gpus = [DeviceCounters(uuid) for uuid in self._uuids]
        self._sockets = not self._devices and not spec.emulated and me.reads_counters
        self._used_before = [gpu.memory_used_bytes() for gpu in self._gpus]

    def begin(self) -> Callable[[], dict[str, float]]:
        """Begin to count; calling what is returned gives what was counted since."""
        if self._gpus:
            ends = [gpu.begin() for gpu in self._gpus]
            return lambda: _of_all([end() for end in ends])
        if not self._sockets:
            return dict
        since = counted_j()

        def end() -> dict[str, float]:
            joules = since()
            return {} if joules is None else {"energy_j": joules}

        return end

    def of_device(self) -> dict[str, Any]:
        """Which device it is, memory that torch's allocator took and that NVML saw; of the first rank, versions."""
        if not self._gpus:
            return {}
        reserved = [torch.cuda.max_memory_reserved(device) for device in self._devices]
        beyond = [self._beyond(at, bytes_) for at, bytes_ in enumerate(reserved)]
        known = [bytes_ for bytes_ in beyond if bytes_ is not None]
        used = sum(known) if len(known) == len(beyond) else None
        libraries = device_libraries() if self._is_first else None
        memory = {"reserved_memory_bytes": sum(reserved), "device_memory_bytes": used}
        return {"device_uuid": self._uuids[0], "cpus": self._cpus, "libraries": libraries, **memory}

    def _beyond(self, at: int, reserved_bytes: int) -> int | None:
        """What is used of a device beyond what was before; None where others freed some, or this process held it."""
        used, before = self._gpus[at].memory_used_bytes(), self._used_before[at]
        return None if used is None or before is None or used - before < reserved_bytes else used - before


def _of_all(counted: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What the devices of a rank counted: energy of all, busy seconds of the mean one, the rest of the worst one.

    Only what each of them counts.
    """
    names = set.intersection(*(set(each) for each in counted))
    values = {name: [each[name] for each in counted] for name in names}
    of: Mapping[str, Callable[[Sequence[float]], float]] = {"energy_j": sum, "busy_s": mean}
    return {name: float(of.get(name, max)(each)) for name, each in values.items()}


def uuid_of(device: torch.device) -> str:
    """The name by which NVML knows a CUDA device; makes no context there."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def device_libraries() -> dict[str, str]:
    """Versions of CUDA, cuDNN and NCCL as torch has loaded them."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl)), "cudnn": str(cudnn)}
