"""From what the ranks of a watched loop left to its figures, verdict and printed lines: pure functions.

The words are those of a trial. What a loop that is not ours cannot tell stays None: how long a reader reads and decodes
a sample, and, unless batches are replayed, what a step takes with its input in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.contract.rank_samples import PARTS
from benchsuite.host.interference import foreign_load
from benchsuite.results.store.record import CANNOT_TELL
from benchsuite.watcher.loop import STEADY_TURNS
from benchsuite.watcher.rank_loop import RankLoop, Told
from benchsuite.watcher.verdict import doubt, remedy, verdict

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
    least_s = min(rank.parts_s.get("communication", 0.0) / rank.num_steps for rank in ranks)
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


MIN_WALL_S = 0.5
"""The kernel counts CPU time in ticks of 10 ms: of a shorter loop it is not told who else kept cores busy."""


def foreign_cores(ranks: Sequence[RankLoop], told: Told) -> tuple[float, int] | None:
    """Cores that others kept busy, and of how many, on the node where it is most.

    None where it is not known: ranks that were not heard of, or loops too short for the kernel's counters.
    """
    if told.ranks_missing or told.ranks_apart or any(rank.everyone_cpu_s is None or not rank.cpus for rank in ranks):
        return None
    if min(rank.wall_s for rank in ranks) < MIN_WALL_S:
        return None
    nodes: dict[str, list[RankLoop]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    return max(_of_node(here) for here in nodes.values())


def _of_node(ranks: Sequence[RankLoop]) -> tuple[float, int]:
    """Of one node; ranks that may use the same cores see the same load."""
    busy: dict[tuple[int, ...], float] = {}
    for rank in ranks:
        busy[rank.cpus] = max(busy.get(rank.cpus, 0.0), (rank.everyone_cpu_s or 0.0) / rank.wall_s)
    own = sum((rank.own_cpu_s or 0.0) / rank.wall_s for rank in ranks)
    return max(0.0, sum(busy.values()) - own), len({cpu for cpus in busy for cpu in cpus})
