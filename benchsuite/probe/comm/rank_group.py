"""The group of ranks that is measured: their agreement, and samples of calls between barriers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """The group that is measured, and another one to agree over."""

    rank: int
    device: torch.device
    control: dist.ProcessGroup

    def most(self, value: float) -> float:
        """The largest of all ranks' values."""
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return float(found)

    def sample_s(self, call: Callable[[], object], calls: int) -> float:
        """Seconds of so many calls, from a barrier on."""
        dist.barrier(self.control)
        if self.device.type == "cuda":
            return _sample_on_device_s(call, calls)
        start_s = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start_s


def _sample_on_device_s(call: Callable[[], object], calls: int) -> float:
    """By events on the stream, waited for."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
