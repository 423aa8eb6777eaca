"""The harness's own share of a step: what its marks and heartbeat take on this machine, on steps that do nothing."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchsuite.contract.rank_samples import Block, Heartbeat
from benchsuite.trial.clock import Clock

BLOCKS = 5
STEPS = 100


def of(clock: Clock, heart: Heartbeat, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the field of a rank's result."""
    return {"instrument_s_per_step": instrument_s_per_step(clock, heart, blocks)}


def instrument_s_per_step(clock: Clock, heart: Heartbeat, blocks: Sequence[Block]) -> float | None:
    """Return host seconds per step of marking as many parts as the steps in `blocks` had, and of the heartbeat.

    The median over blocks of start, marks, heartbeats and stop. Caches are warm here, and what a mark on a CUDA stream
    costs the device is not seen. The heartbeat is the rank's own, in its own file; the count of its steps stays.
    """
    parts = tuple(next((block.parts for block in reversed(blocks) if block.parts), {}))
    if not parts:
        return None
    return median(_block(clock, heart, parts) for _ in range(BLOCKS)) / STEPS


def _block(clock: Clock, heart: Heartbeat, parts: Sequence[str]) -> float:
    """Seconds of one block of empty steps."""
    began_s = time.perf_counter()
    clock.start()
    for _ in range(STEPS):
        for part in parts:
            clock.mark(part)
        heart.beat()
    clock.stop()
    return time.perf_counter() - began_s
