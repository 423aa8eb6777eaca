"""Which way each metric is good, what change matters, and how much of the gate's false alarms it may have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchsuite.results.store.nearest import nearest
from benchsuite.results.store.record import Kind
from benchsuite.results.store.store import StoreError


@dataclass(frozen=True)
class Metric:
    """A figure that is compared: a positive number, judged by ratios."""

    name: str
    higher_is_better: bool
    practical: float
    """The least relative change that matters."""
    gate_share: float = 0.0
    """Part of the gate's false alarms; 0: compared, not gated."""

    @property
    def sign(self) -> int:
        """Makes logarithms larger for worse."""
        return -1 if self.higher_is_better else 1


METRICS = (
    Metric("samples_per_s", True, 0.005, 0.90),
    Metric("au", True, 0.01, 0.04),
    Metric("first_batch_s", False, 0.10, 0.03),
    Metric("stage_s", False, 0.05, 0.03),
    Metric("step_s_mean", False, 0.005),
    Metric("step_s_p95", False, 0.02),
    Metric("tokens_per_s", True, 0.005),
    Metric("io_bytes_per_s", True, 0.005),
    Metric("storage_bytes_per_s", True, 0.02),
    Metric("mfu", True, 0.005),
    Metric("startup_s", False, 0.10),
    Metric("peak_memory_bytes", False, 0.01),
    Metric("host_memory_bytes", False, 0.05),
    Metric("energy_j", False, 0.02),
    Metric("comm_s", False, 0.05),
    Metric("busbw_bytes_per_s", True, 0.05),
)
"""samples_per_s has nearly all of the gate: a slow-down shows there, whatever its cause."""
OF_PATHS = (
    Metric("storage_ceiling_bytes_per_s", True, 0.05),
    Metric("random_read_bytes_per_s", True, 0.05),
    Metric("random_reads_per_s", True, 0.05),
    Metric("put_bytes_per_s", True, 0.05),
    Metric("creates_per_s", True, 0.10),
    Metric("opens_per_s", True, 0.10),
    Metric("unlinks_per_s", True, 0.10),
)
"""What `probe storage` measures of a path."""
GATED = tuple(metric for metric in METRICS if metric.gate_share)
GATED_OF: Mapping[Kind, tuple[Metric, ...]] = {"comm": (Metric("comm_s", False, 0.05, 1.0),), "trial": GATED}
"""What is checked, by kind of record: collectives on their own, which take nothing of what trials may alarm."""
BY_DEFAULT = ("samples_per_s", "au", "first_batch_s", "stage_s", "peak_memory_bytes")
"""What `compare` prints unless told otherwise."""
DEFAULT_OF: Mapping[Kind, tuple[str, ...]] = {
    "trial": BY_DEFAULT,
    "comm": ("comm_s", "step_s_mean"),
    "probe": tuple(metric.name for metric in OF_PATHS),
}
"""What `compare` prints by kind of record; of collectives a training step with DDP alone has a step."""


def chosen(names: Iterable[str]) -> tuple[Metric, ...]:
    """Metrics by name.

    Raises:
        StoreError: one is not compared, with the nearest that is.
    """
    known = {metric.name: metric for metric in (*METRICS, *OF_PATHS)}
    for name in names:
        if name not in known:
            raise StoreError(f"metric {name!r} is not compared; allowed: {', '.join(known)}{nearest(name, known)}")
    return tuple(known[name] for name in names)


Array = NDArray[np.float64]
