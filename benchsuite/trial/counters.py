"""What a rank's device says of itself beside its steps: energy, clocks held back, memory, versions of its libraries."""

from collections.abc import Callable
from typing import Any

import torch

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.energy import counted_j
from benchsuite.host.gpus import DeviceCounters
from benchsuite.trial.setup import device_of


class Counters:
    """Counts for one rank: its CUDA device, or, of ranks on a CPU, the first of a node all its sockets' energy."""

    def __init__(self, spec: TrialSpec, me: RankIdentity, cpus: str | None = None) -> None:
        """Look at the device before anything of this rank lies on it; `cpus` are those that it was bound to."""
        device = device_of(spec, me)
        self._is_first, self._cpus = me.rank == 0, cpus
        self._uuid = uuid_of(device) if device.type == "cuda" else None
        self._gpu = DeviceCounters(self._uuid) if self._uuid else None
        self._sockets = device.type == "cpu" and not spec.emulated and me.reads_counters
        self._used_before = self._gpu.memory_used_bytes() if self._gpu else None

    def begin(self) -> Callable[[], dict[str, float]]:
        """Begin to count; calling what is returned gives what was counted since."""
        if self._gpu:
            return self._gpu.begin()
        if not self._sockets:
            return dict
        since = counted_j()

        def end() -> dict[str, float]:
            joules = since()
            return {} if joules is None else {"energy_j": joules}

        return end

    def of_device(self) -> dict[str, Any]:
        """Which device it is, memory that torch's allocator took and that NVML saw; of the first rank, versions."""
        if self._gpu is None:
            return {}
        reserved, used, before = torch.cuda.max_memory_reserved(), self._gpu.memory_used_bytes(), self._used_before
        beyond = None if used is None or before is None else used - before
        if beyond is not None and beyond < reserved:
            beyond = None  # others freed memory meanwhile, or this process held it before
        libraries = device_libraries() if self._is_first else None
        memory = {"reserved_memory_bytes": reserved, "device_memory_bytes": beyond}
        return {"device_uuid": self._uuid, "cpus": self._cpus, "libraries": libraries, **memory}


def uuid_of(device: torch.device) -> str:
    """The name by which NVML knows a CUDA device; makes no context there."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def device_libraries() -> dict[str, str]:
    """Versions of CUDA, cuDNN and NCCL as torch has loaded them."""
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl)), "cudnn": str(cudnn)}
