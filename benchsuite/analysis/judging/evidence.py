"""The numbers that a verdict rests on, by name, and where in the user's code the time goes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchsuite.analysis.judging import lost_time
from benchsuite.analysis.judging.between_ranks import differences, how_often, slow_part, slow_part_of_marked
from benchsuite.analysis.judging.lost_time import COMPUTE, UNSEEN, Shares, Where, num_steps
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.shares import (
    amplification,
    ended_share,
    locked_looks,
    of_body,
    queued_share,
    share_of,
    start_s,
)
from benchsuite.analysis.judging.thresholds import (
    FULL_THREAD,
    LONG_STEP,
    LONG_STEPS_SHARE,
    MAIN_SHARE,
    MANY_HIDDEN,
    NAMED_STEPS,
    RARELY,
    SURE_LOOKS,
    TOLD_LINE,
)
from benchsuite.analysis.metrics import asks_loader
from benchsuite.inside.samples import Looks, RankSamples

TOLD = (
    "input_stall_fraction",
    "au",
    "cpu_contention_fraction",
    "threads_contention_fraction",
    "refill_fraction",
    "read_s_per_sample",
    "decode_s_per_sample",
    "collate_s_per_sample",
    "unpack_s_per_sample",
    "reader_busy_fraction",
    "cache_hit_fraction",
    "client_thread_busy_fraction",
)
"""Figures that are told as they are."""
HAND_OVER = Where("preprocessing", "hand_over")


def evidence_of(
    figures: Mapping[str, Any], rank: RankSamples, ranks: Sequence[RankSamples], setting: Setting, lost: Shares
) -> dict[str, float | int | str]:
    """The numbers that it rests on, by name; shares are of the step."""
    seen, used, looks, step_s = rank.seen_readers, rank.used_cores, rank.looks, figures["step_s_mean"]
    found: dict[str, Any] = {name: figures.get(name) for name in TOLD}
    found |= {
        "rank": rank.rank if len(ranks) > 1 else None,
        "slowest_rank": figures.get("slowest_rank"),
        "bubble_fraction": (figures.get("bubble_s") or 0.0) / step_s or None,
        "saturation": setting.saturation(figures),
        "steps": num_steps(rank, setting),
        "steps_are_few": num_steps(rank, setting) < NAMED_STEPS or None,
        "client_is_full": (figures.get("client_thread_busy_fraction") or 0.0) >= FULL_THREAD or None,
        **_of_ranks(ranks),
        "waits_in_body": _waits_in_body(figures, rank, setting, lost) or None,
        "workers_stay": True if seen is not None and seen.workers_stay else None,
        "asks_no_loader": (setting.watched and not asks_loader(rank)) or None,
        "amplification": amplification(rank),
        "reader_queue_fraction": queued_share(seen) if seen is not None else None,
        "throttled_fraction": used.throttled_fraction if used is not None else None,
        "memory_stall_fraction": used.memory_stall_fraction if used is not None else None,
        "idle_cores": used.idle_cores if used is not None else None,
        "locked_looks_fraction": locked_looks(rank) or None,
        "ended_looks_fraction": ended_share(rank) or None,
        "hidden_looks_fraction": _hidden(looks) if looks is not None else None,
        "readers_seen": 0 if looks is not None and _waits_for_strangers(looks) else None,
        "worker_start_s": fmean(of_workers) if (of_workers := start_s(rank)) else None,
        "exchange_of_body_fraction": share_of(looks.body, "exchange") if looks is not None else None,
        "looks_of_input": sum(looks.load.values()) if looks is not None else None,
        "looks_of_body": sum(looks.body.values()) if looks is not None else None,
    }
    if figures.get("communication_min_s") is not None:
        found["exchange_of_body_fraction"] = None
    if seen is not None and seen.batch_arrays and HAND_OVER in lost:
        found |= {"batch_tensors": seen.batch_arrays, "batch_bytes": seen.batch_bytes}
        handing_s, batches = looks.inside.handed_over if looks is not None and looks.inside is not None else (0.0, 0)
        found["hand_over_s"] = handing_s / batches if handing_s and batches else None
    found |= _long_steps(rank)
    if len(ranks) > 1 and figures.get("communication_min_s") is None:
        found |= slow_part(ranks)
    elif figures.get("slowest_rank") is not None and Where("imbalance", "slow_rank") in lost:
        found |= slow_part_of_marked(ranks, figures["slowest_rank"])
        found |= how_often(ranks, figures["slowest_rank"])
    if len(ranks) > 1 and found.get("slowest_rank") is not None:
        found |= differences(ranks, found["slowest_rank"], found.get("fastest_rank"))
    found |= _places(looks, lost, num_steps(rank, setting)) if looks is not None else {}
    found |= {f"{where}_fraction": share for where, share in sorted(lost.items(), key=lambda each: -each[1])}
    return {name: value for name, value in found.items() if value is not None}


def _hidden(looks: Looks) -> float | None:
    """Share of all looks at which the kernel did not show what a thread waits for; None where it is small."""
    inside = looks.inside.readers if looks.inside is not None else {}
    counts = sum(map(Counter, (looks.load, looks.readers, looks.body, inside)), Counter[str]())
    hidden = share_of(counts, "hidden")
    return hidden if hidden >= MANY_HIDDEN else None


def _waits_for_strangers(looks: Looks) -> bool:
    """Whether the loop mostly waits for somebody who loads, of whom nobody is known."""
    return not looks.readers and looks.inside is None and share_of(looks.load, "waits_for_readers") >= MAIN_SHARE


def _waits_in_body(figures: Mapping[str, Any], rank: RankSamples, setting: Setting, lost: Shares) -> bool:
    """Whether the loop waits in its body rather than for its input."""
    body = 1 - (figures.get("input_stall_fraction") or 0.0)
    waits = sum(share for where, share in of_body(figures, rank, setting, 0.0).items() if where.verdict == "waiting")
    return body * waits > sum(share for where, share in lost.items() if where.verdict == "waiting") / 2


def _of_ranks(ranks: Sequence[RankSamples]) -> dict[str, int | None]:
    """How far ranks differ in the number of their steps."""
    steps = [num_steps(rank) for rank in ranks]
    return {"fewest_steps": min(steps), "most_steps": max(steps)} if len({*steps}) > 1 else {}


def _long_steps(rank: RankSamples) -> dict[str, float]:
    """Steps that are rarely long and take much of the time all the same; empty where there are none."""
    steps = [seconds for block in rank.blocks if block.kind == "loader" for seconds in block.step_s()]
    usual = median(steps) if steps else 0.0
    long = [seconds for seconds in steps if seconds > LONG_STEP * usual]
    beyond = sum(long) - usual * len(long)
    if not long or len(long) > RARELY * len(steps) or beyond <= LONG_STEPS_SHARE * sum(steps):
        return {}
    return {
        "long_steps_fraction": len(long) / len(steps),
        "long_steps_time_fraction": sum(long) / sum(steps),
        "long_step_s": median(long),
        "other_step_s": usual,
    }


def _places(looks: Looks, lost: Shares, steps: int) -> dict[str, float | int | str]:
    """Where in the user's code most of what is lost was seen, and in which folder."""
    found: dict[str, float | int | str] = {}
    if looks.files:
        found["folder"] = max(looks.files, key=lambda name: looks.files[name])
    losses = {where: share for where, share in lost.items() if where not in (COMPUTE, UNSEEN)}
    if not losses:
        return found
    main = max(losses, key=lambda where: losses[where])
    seen = [*looks.lines, *(looks.inside.lines if looks.inside is not None else ())]
    lines = [each for each in seen if _table(each.phase).get(each.word) == main and each.line != "other"]
    if lines:
        most = max(lines, key=lambda each: each.looks)
        counts = looks.body if most.phase == "body" else looks.load if most.phase == "load" else {}
        inside = looks.inside.readers if looks.inside is not None else {}
        total = sum((counts or inside).values()) or most.looks
        if most.looks < TOLD_LINE * total:
            return found
        phases = {"body": "the loop's body", "load": "the waiting for input", "readers": "the workers' time"}
        found |= {"line": most.line, "line_fraction": most.looks / total, "line_of": phases[most.phase]}
        if most.phase == "body" and most.looks >= SURE_LOOKS * most.steps:
            found["line_steps_fraction"] = most.steps / steps
    return found


def _table(phase: str) -> Mapping[str, Where]:
    return lost_time.OF_BODY if phase == "body" else lost_time.OF_READERS
