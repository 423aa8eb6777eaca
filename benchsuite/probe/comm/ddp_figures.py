"""DDP's steps as figures: what of the exchange was exposed. Imports no torch."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from benchsuite.results.store.record import Figures

OVERLAP, AFTER = "overlapped", "after_backward"
MODES = (OVERLAP, AFTER)
LAYERS: Mapping[str, int] = {"cpu": 64, "cuda": 24}
WIDTH: Mapping[str, int] = {"cpu": 256, "cuda": 2048}
BATCH: Mapping[str, int] = {"cpu": 128, "cuda": 8192}
"""Of a chain of square linear layers without bias, whose backward takes about as long as a common exchange."""


def gradient_bytes(device: str) -> int:
    """All gradients, float32."""
    return 4 * LAYERS[device] * WIDTH[device] ** 2


def step_figures(seconds: Sequence[float], extras: Sequence[Mapping[str, Any]]) -> Figures:
    """Medians over steps. `seconds`: of the slowest rank, step by step; `extras`: of each rank, seconds by part.

    Exposed communication is told twice: of the rank that waits longest (`communication_s`), and of the one that waits
    least (`communication_min_s`): the slowest of a step, which the others wait for, so that its wait is the wire's and
    not a straggler's. Tables, charts and overlap take the second, and of the exchange alone the same.
    """
    part = {
        name: np.array([extra[name] for extra in extras]) for name in ("forward_s", "backward_s", "communication_s")
    }
    alone_s = median(np.array([extra["alone_s"] for extra in extras]).min(axis=0).tolist())
    exposed_s = part["communication_s"].min(axis=0)
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    return Figures(
        forward_s=float(np.median(part["forward_s"].max(axis=0))),
        backward_s=float(np.median(part["backward_s"].max(axis=0))),
        communication_s=float(np.median(part["communication_s"].max(axis=0))),
        communication_min_s=float(np.median(exposed_s)),
        step_s_mean=fmean(seconds),
        step_s_p50=float(p50),
        step_s_p95=float(p95),
        step_s_p99=float(p99),
        comm_s=alone_s,
        overlap_fraction=1 - float(np.median(exposed_s)) / alone_s,
    )
