"""From what the ranks of a watched loop left to its figures, verdict and printed lines: pure functions.

The words are those of a trial. What a loop that is not ours cannot tell stays None: how long a reader reads and decodes
a sample, and, unless batches are replayed, what a step takes with its input in memory.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchsuite.clock import PARTS
from benchsuite.crowding import foreign_load
from benchsuite.watched.foreign import foreign_cores
from benchsuite.watched.loop import STEADY_TURNS, Loop
from benchsuite.watched.verdict import doubt, remedy, verdict
from results.record import CANNOT_TELL

UTILIZATION = "1 - share of the step that waits for input; not AU, which needs ceiling='replay'"
UTILIZATION_REPLAYED = "AU: step time on batches seen before / step time, in blocks side by side"
PRINTED = {"other": "rest of the loop body"}
HIDDEN_SHARE = 0.005
"""A marked part that is less of the step is not printed."""
HELD = {
    "compute": "Nothing but computation holds it back",
    "mixed": "Held back by more than one cause, or by one that cannot be told",
    CANNOT_TELL: "What holds it back cannot be told",
}
MIN_CEILING_STEPS = 8


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


def figures(ranks: Sequence[RankLoop], told: Told) -> dict[str, Any]:
    """Every figure that the loops give; the step and its parts are those of the slowest rank."""
    slowest = max(ranks, key=lambda rank: rank.seconds / rank.num_steps)
    step_s = slowest.seconds / slowest.num_steps
    samples = [rank.samples for rank in ranks]
    wall_s = max(rank.wall_s for rank in ranks)
    busy = [rank.reader_busy_fraction for rank in ranks if rank.reader_busy_fraction is not None]
    stall = max(rank.parts_s.get("load", 0.0) / rank.seconds for rank in ranks)
    memory = [rank.peak_memory_bytes for rank in ranks if rank.peak_memory_bytes]
    found: dict[str, Any] = {
        "samples_per_s": None if None in samples else sum(filter(None, samples)) / max(r.seconds for r in ranks),
        "input_stall_fraction": stall,
        "cpu_contention_fraction": None if slowest.run_queue_s is None else slowest.run_queue_s / slowest.wall_s,
        **{f"{name}_s": seconds / slowest.num_steps for name, seconds in slowest.parts_s.items()},
        "step_s_mean": step_s,
        **dict(zip(("step_s_p50", "step_s_p95", "step_s_p99"), slowest.step_s, strict=True)),
        **_replayed(ranks),
        **_bytes(ranks, wall_s, told.reads_counted),
        "worker_busy_fraction": max(busy, default=None),
        "refill_fraction": max(r.refill_s / r.parts_s["load"] if r.parts_s.get("load") else 0.0 for r in ranks),
        "first_batch_s": max((r.first_batch_s for r in ranks if r.first_batch_s is not None), default=None),
        "peak_memory_bytes": max(memory, default=None),
        "overhead_fraction": max((r.overhead for r in ranks if r.overhead is not None), default=None),
    }
    others = foreign_cores(ranks, told)
    found["foreign_cpu_cores"] = None if others is None else others[0]
    au = found.get("au")
    found["utilization"] = 1 - stall if au is None else au
    found["utilization_is"] = UTILIZATION if au is None else UTILIZATION_REPLAYED
    least_s = min(rank.parts_s.get("exchange", 0.0) / rank.num_steps for rank in ranks)
    reason = doubt(ranks, au)
    found["bottleneck"], found["bottleneck_evidence"] = (
        (CANNOT_TELL, reason) if reason else verdict(found, slowest, least_s)
    )
    sharing = _sharing_cores(ranks, slowest)
    crowd = others and foreign_load(*others)
    found["bottleneck_remedy"] = remedy(found, slowest.num_readers, told.cores, crowd, sharing)
    return found | {"steps": slowest.num_steps, "passes": slowest.num_passes, "world_size": len(ranks)}


def _sharing_cores(ranks: Sequence[RankLoop], one: RankLoop) -> int:
    """How many of the ranks may use cores that this one may use, itself included."""
    here = [rank.cpus for rank in ranks if rank.node == one.node]
    return sum(cpus == one.cpus or bool({*cpus} & {*one.cpus}) for cpus in here)


def _replayed(ranks: Sequence[RankLoop]) -> dict[str, float]:
    """AU of the slowest rank's blocks, where there are both kinds."""
    if any(rank.ceiling_steps < MIN_CEILING_STEPS or not rank.between_steps for rank in ranks):
        return {}
    ceiling_s = max(rank.ceiling_s / rank.ceiling_steps for rank in ranks)
    return {"ceiling_step_s": ceiling_s, "au": ceiling_s / max(rank.between_s / rank.between_steps for rank in ranks)}


def _bytes(ranks: Sequence[RankLoop], wall_s: float, reads_counted: bool | None) -> dict[str, float | None]:
    """Bytes read by the ranks and their workers. Where none came from storage, that may be for want of counting."""
    calls, fetched = [rank.read_call_bytes for rank in ranks], [rank.storage_bytes for rank in ranks]
    read = None if None in calls else sum(filter(None, calls))
    stored = None if None in fetched or reads_counted is False else sum(filter(None, fetched))
    if not stored and not reads_counted:
        stored = None
    hit = max(0.0, 1 - stored / read) if reads_counted and stored is not None and read else None
    more = stored / read if hit is not None and stored is not None and read and stored > read else None
    return {
        "read_call_bytes_per_s": None if read is None else read / wall_s,
        "storage_bytes_per_s": None if stored is None else stored / wall_s,
        "cache_hit_fraction": hit,
        "read_amplification": more,
    }


def caveats(ranks: Sequence[RankLoop], told: Told) -> list[tuple[str, str]]:
    """Why figures must not be trusted blindly: (name, the arithmetic)."""
    found = []
    steps, queue = min(rank.num_steps for rank in ranks), max(rank.queue_batches for rank in ranks)
    if steps < STEADY_TURNS * max(queue, 1):
        found.append(
            ("not_steady", f"{steps} counted steps cover the loader's queue of {queue} batches less than 3 times")
        )
    if told.ranks_missing:
        missing = ", ".join(map(str, told.ranks_missing))
        found.append(("ranks_missing", f"ranks {missing} did not report; the figures are those of the others"))
    others = foreign_cores(ranks, told)
    if others is not None and (load := foreign_load(*others)):
        found.append(("foreign_load", load))
    if told.cut_short_by is not None:
        found.append(("cut_short", f"the loop ended by {told.cut_short_by}"))
    return found


def lines(ranks: Sequence[RankLoop], told: Told, found: Mapping[str, Any]) -> list[str]:
    """What is printed when the loop has ended: a sentence, a table, and what the numbers rest on."""
    first = ranks[0]
    passes = f"{first.num_passes} passes, " if first.num_passes > 1 else ""
    over = f" on each of {len(ranks)} ranks" if len(ranks) > 1 else ""
    head = f"{told.name} · {passes}{first.num_steps} steps counted{over}, {first.num_uncounted} before · {first.device}"
    held = HELD.get(found["bottleneck"], f"Held back by {found['bottleneck']}")
    return [
        head,
        f"-> {held}: {found['bottleneck_evidence']}.",
        *([f"   What may help: {found['bottleneck_remedy']}."] if found["bottleneck_remedy"] else []),
        *_table(found),
        _rates(found),
        f"utilization {found['utilization']:.2f} = {found['utilization_is']}",
        *_own(found),
        *(f"caveat: {name}: {why}" for name, why in caveats(ranks, told)),
        *([f"{told.num_replayed} steps were trained on batches seen before"] if told.num_replayed else []),
    ]


def _table(found: Mapping[str, Any]) -> list[str]:
    """The parts of the step, in their order, and the step."""
    step_s = found["step_s_mean"]
    rows = [(PRINTED.get(name, name), found.get(f"{name}_s")) for name in (*PARTS, "other")]
    marked = any(seconds is not None for name, seconds in rows if name in PARTS[1:])
    shown = [(name if marked or name == "load" else "loop body", s) for name, s in rows if s is not None]
    shown = [row for row in shown if row[1] >= HIDDEN_SHARE * step_s or row[0] in ("load", "loop body")]
    tail = " · ".join(f"{name} {found[f'step_s_{name}'] * 1e3:.1f}" for name in ("p50", "p95", "p99"))
    return [
        f"{'':<22}{'ms/step':>9}{'share':>8}",
        *(f" {name:<21}{seconds * 1e3:>9.1f}{seconds / step_s:>8.0%}" for name, seconds in shown),
        f" {'step':<21}{step_s * 1e3:>9.1f}{1:>8.0%}   {tail}",
    ]


def _rates(found: Mapping[str, Any]) -> str:
    """Samples and bytes per second, as far as they are known."""
    rate, read, stored = (found[name] for name in ("samples_per_s", "read_call_bytes_per_s", "storage_bytes_per_s"))
    parts = [f"{1 / found['step_s_mean']:.1f} steps/s" if rate is None else f"{rate:,.0f} samples/s"]
    if read is not None:
        parts.append(f"{read / 1e6:,.1f} MB/s asked for in read calls")
    parts.append("from storage: not known here" if stored is None else f"{stored / 1e6:,.1f} MB/s from storage")
    return " · ".join(parts)


def _own(found: Mapping[str, Any]) -> list[str]:
    share = found["overhead_fraction"]
    return [] if share is None else [f"watching took {share:.3%} of the step, by calibration"]
