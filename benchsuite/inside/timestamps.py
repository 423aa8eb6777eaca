"""Moments within a loop that is not ours: host times, or CUDA events that are read when they have passed.

Nothing here waits for the device while the loop runs.
"""

import sys
import time
from typing import Any, Protocol


class Stamps(Protocol):
    """Moments on one timeline."""

    device: str
    index: int | None
    """The number of the CUDA device."""

    def now(self) -> Any:
        """This moment."""

    def passed(self, stamp: Any) -> bool:
        """Whether the timeline has come to this moment, so that it can be read."""

    def wait(self, stamp: Any) -> None:
        """Wait for it."""

    def seconds(self, before: Any, after: Any) -> float:
        """Between two moments that have passed."""


class HostStamps:
    """Host times: for devices that compute synchronously."""

    device = "cpu"
    index: int | None = None
    now = staticmethod(time.perf_counter)

    def passed(self, stamp: float) -> bool:
        return True

    def wait(self, stamp: float) -> None:
        pass

    def seconds(self, before: float, after: float) -> float:
        return after - before


class CudaStamps:
    """Events on the device's current stream: an interval is what the device saw of it, as in `clock.CudaClock`."""

    def __init__(self, device: str) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = torch.device(device if ":" in device else f"cuda:{torch.cuda.current_device()}")
        self.device = torch.cuda.get_device_name(self._device)
        self.index: int | None = self._device.index

    def now(self) -> Any:
        event = self._cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._cuda.current_stream(self._device))
        return event

    def passed(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def wait(self, stamp: Any) -> None:
        stamp.synchronize()

    def seconds(self, before: Any, after: Any) -> float:
        return float(before.elapsed_time(after)) / 1e3


def stamps_for(device: str | None) -> Stamps:
    """Events where the loop computes on a CUDA device: the one named, or the current one once CUDA is in use."""
    torch: Any = sys.modules.get("torch")
    if device is None and torch is not None and torch.cuda.is_initialized():
        device = "cuda"
    return CudaStamps(device) if device is not None and device.startswith("cuda") else HostStamps()
