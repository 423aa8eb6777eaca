"""What one rank of a watched loop left: plain data, which ranks send to rank 0."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchsuite.watcher.loop import Loop


@dataclass(frozen=True)
class RankLoop:
    """What one rank's loop left: sums over its counted steps, and what the kernel counted meanwhile."""

    rank: int
    device: str
    num_steps: int
    num_uncounted: int
    num_passes: int
    samples: int | None
    parts_s: dict[str, float]
    """Seconds of each part, over all counted steps."""
    step_s: tuple[float, float, float]
    """50th, 95th and 99th percentile over the steps kept."""
    wall_s: float
    run_queue_s: float | None
    read_call_bytes: int | None
    storage_bytes: int | None
    num_readers: int
    reader_busy_fraction: float | None
    """Of worker processes; where there are none as `loader_busy_fraction`."""
    first_batch_s: float | None
    refill_s: float = 0.0
    """Of the loads: those of the first steps of later passes."""
    ceiling_steps: int = 0
    ceiling_s: float = 0.0
    between_steps: int = 0
    between_s: float = 0.0
    own_s_per_step: float | None = None
    queue_batches: int = 0
    peak_memory_bytes: int | None = None
    node: str = ""
    cpus: tuple[int, ...] = ()
    """Numbers of the cores that this rank may use."""
    everyone_cpu_s: float | None = None
    """CPU seconds of everyone on these cores, while counted steps ran."""
    own_cpu_s: float | None = None
    """Of them this rank's, its workers included."""
    loader_busy_fraction: float | None = None
    """Share of the loads in which the thread that waits for them ran, or waited for a core."""
    fed_cores: float | None = None
    """Kept busy during the loads by threads that load for that one."""
    beside_cores: float | None = None
    """Kept busy during the loads by others of this rank, of whom it is not known whether they load."""

    @property
    def seconds(self) -> float:
        """In all counted steps."""
        return sum(self.parts_s.values())

    @property
    def overhead(self) -> float | None:
        """Share of the step that watching takes."""
        return None if self.own_s_per_step is None else self.own_s_per_step * self.num_steps / self.seconds

    @staticmethod
    def from_json(text: str | bytes) -> "RankLoop":
        """As `json.dumps(asdict(...))` wrote it."""
        value: dict[str, Any] = json.loads(text)
        p50, p95, p99 = value.pop("step_s")
        return RankLoop(step_s=(p50, p95, p99), cpus=tuple(value.pop("cpus", ())), **value)


@dataclass(frozen=True)
class Told:
    """What is known of the loop beside its measurements."""

    name: str
    ranks_missing: tuple[int, ...] = ()
    reads_counted: bool | None = None
    """Whether the data's file system adds to the counters of processes; None where it was not named."""
    cut_short_by: str | None = None
    """The exception that ended the loop."""
    num_replayed: int = 0
    """Steps that got a batch again."""
    cores: int | None = None
    """That this process may use."""
    ranks_apart: bool = False
    """Other ranks' loops are not among these: what they keep busy is not known from that of others."""


def rank_loop(loop: Loop, rank: int, **facts: Any) -> RankLoop:
    """Sum up a loop that has ended."""
    steps = [sum(parts.values()) for parts in loop.steps.kept]
    p50, p95, p99 = np.percentile(steps, [50, 95, 99]) if steps else (0.0, 0.0, 0.0)
    counted, loads = loop.counted, loop.loads
    own, fed, beside = (
        None if not loads.seconds else part / loads.seconds for part in (loads.own_s, loads.fed_s, loads.beside_s)
    )
    if beside is not None and loop.feeders.unseen:
        beside += counted.below_cpu_s / counted.wall_s
    return RankLoop(
        rank=rank,
        device=loop.stamps.device,
        num_steps=loop.steps.num_steps,
        num_uncounted=loop.num_uncounted,
        num_passes=loop.num_passes,
        samples=loop.steps.samples,
        parts_s=dict(loop.steps.parts_s),
        step_s=(float(p50), float(p95), float(p99)),
        wall_s=counted.wall_s,
        run_queue_s=counted.run_queue_s,
        read_call_bytes=counted.read_call_bytes,
        storage_bytes=counted.storage_bytes,
        num_readers=loop.readers.num_readers,
        reader_busy_fraction=loop.readers.busy_fraction() if loop.readers.num_readers else own,
        first_batch_s=loop.first_batch_s,
        refill_s=loop.refill_s,
        ceiling_steps=loop.ceiling.num_steps,
        ceiling_s=loop.ceiling.seconds,
        between_steps=loop.between.num_steps,
        between_s=loop.between.seconds,
        everyone_cpu_s=counted.everyone_cpu_s,
        own_cpu_s=counted.own_cpu_s,
        loader_busy_fraction=own,
        fed_cores=fed,
        beside_cores=beside,
        **facts,
    )
