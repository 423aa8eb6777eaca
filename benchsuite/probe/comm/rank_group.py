"""The group of ranks that is measured: their agreement, samples of calls between barriers, and what was found."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from benchsuite.trial.clock import on_device_s


@dataclass(frozen=True)
class Timed:
    """One cell as one rank saw it in one round; a line of JSON in the attempt's folder as soon as it is known."""

    cell: int
    """The cell's number; those of DDP's steps follow."""
    status: str
    """ok, failed or skipped."""
    reason: str | None = None
    calls: int = 0
    """Calls in a sample, one after the other."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of one call, sample by sample: a sample's time over its calls."""
    messages: int | None = None
    sent_bytes: int | None = None
    """What this rank sent in one call, counted; None where the backend sends and does not tell."""
    extra: dict[str, object] = field(default_factory=dict)


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
            return on_device_s(call, calls)
        start_s = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start_s

    def replayed(self, call: Callable[[], object], calls: int) -> Callable[[], object] | None:
        """The same calls as one graph, so that small messages take the library's time and not Python's.

        None on a CPU, and where some rank's calls cannot be captured.
        """
        if self.device.type != "cuda":
            return None
        graph, refused = torch.cuda.CUDAGraph(), False
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(calls):
                    call()
        except RuntimeError:
            refused = True
        return None if self.most(float(refused)) else graph.replay
