"""What holds ranks back that is seen only by comparing them."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchsuite.analysis.judging import lost_time
from benchsuite.analysis.judging.lost_time import UNSEEN, Where, num_steps
from benchsuite.analysis.judging.shares import share_of
from benchsuite.analysis.judging.thresholds import (
    COMMUNICATION_SHARE,
    CONTENTION_SHARE,
    FEWER_BATCHES,
    LONGER_PART,
    SLOWER_CLOCK,
    SLOWER_RANK,
    USUAL_PART,
)
from benchsuite.analysis.metrics import steps_alike
from benchsuite.inside.samples import Block, RankSamples


def between_ranks(figures: Mapping[str, Any], ranks: Sequence[RankSamples]) -> Where | None:
    """What holds ranks back that is seen only by comparing them; None where nothing is, or their exchange is marked."""
    if len(ranks) < 2:
        return None
    steps = [num_steps(rank) for rank in ranks]
    if min(steps) < (1 - FEWER_BATCHES) * max(steps):
        return Where("imbalance", "fewer_batches")
    if figures.get("communication_min_s") is not None:
        return None
    own = [_own_s(rank) for rank in ranks]
    known = [seconds for seconds in own if seconds]
    if known and None not in own and max(known) > SLOWER_RANK * min(known):
        return Where("imbalance", "slow_rank")
    return Where("imbalance", "slow_rank") if slow_part(ranks) else None


OWN_PARTS = ("h2d", "forward", "optimizer")
"""Marked parts of a step in which data parallel ranks do not wait for each other."""


def slow_part(ranks: Sequence[RankSamples]) -> dict[str, float | str]:
    """The marked part that takes one rank longest beyond another, whose threads are in no exchange; empty without one.

    It has to be longer by a part of the step that would hold ranks back as exposed communication does.
    """
    parts = [_parts_of_step_s(rank) for rank in ranks]
    named = [name for name in OWN_PARTS if all(name in each for each in parts)]
    if not named:
        return {}
    beyond = {name: max(each[name] for each in parts) - min(each[name] for each in parts) for name in named}
    part = max(beyond, key=lambda name: beyond[name])
    times = [each[part] for each in parts]
    slow, fast = times.index(max(times)), times.index(min(times))
    looks = ranks[slow].looks
    waits = looks is not None and share_of(looks.body, "exchange") > COMMUNICATION_SHARE
    if waits or beyond[part] <= COMMUNICATION_SHARE * sum(parts[slow].values()):
        return {}
    seen: dict[str, float | str] = {"slow_part": part, "slowest_rank": ranks[slow].rank, "slow_part_s": times[slow]}
    return seen | {"fastest_rank": ranks[fast].rank, "fast_part_s": times[fast]}


def slow_part_of_marked(ranks: Sequence[RankSamples], slowest: int) -> dict[str, float | str]:
    """What the slowest of ranks whose exchanges are marked does longer than the others; empty where that is little.

    Besides: how long it and the quickest wait for a core.
    """
    slow = next(rank for rank in ranks if rank.rank == slowest)
    others = [rank for rank in ranks if rank.rank != slowest]
    mine, theirs = _parts_of_step_s(slow), [_parts_of_step_s(rank) for rank in others]
    named = [name for name in mine if name not in WAITS_FOR_OTHERS and all(name in each for each in theirs)]
    beyond = {name: mine[name] - median(each[name] for each in theirs) for name in named}
    part = max(beyond, key=lambda name: beyond[name], default="")
    if not part or beyond[part] <= LONGER_PART * sum(mine.values()):
        return {}
    fast = min(others, key=lambda rank: _parts_of_step_s(rank)[part])
    seen: dict[str, float | str] = {
        "slow_part": part,
        "slow_part_s": mine[part],
        "fastest_rank": fast.rank,
        "fast_part_s": _parts_of_step_s(fast)[part],
    }
    waits = [_core_wait(rank) for rank in (slow, fast)]
    if waits[0] - waits[1] > CONTENTION_SHARE:
        seen |= {"slow_core_wait_fraction": waits[0], "fast_core_wait_fraction": waits[1]}
    return seen


def how_often(ranks: Sequence[RankSamples], slowest: int) -> dict[str, float]:
    """In which share of the steps the slowest of ranks whose exchanges are marked holds the others back, and its share
    of all that ranks hold each other back. Empty where ranks' steps cannot be compared one by one.

    It holds them back in a step for which it takes longer than they by a part of the mean step, and by a part of what
    is usual for it: what is less is noise.
    """
    blocks = [block for rank in ranks if (block := _block(rank)) is not None]
    alike = steps_alike(blocks) if len(blocks) == len(ranks) else 0
    if not alike:
        return {}
    own, beyond = [_own_steps_s(block)[:alike] for block in blocks], {rank.rank: [0.0] for rank in ranks}
    for times in zip(*own, strict=True):
        *others, longest = sorted(times)
        beyond[ranks[times.index(longest)].rank].append(longest - median(others))
    lost_s = sum(map(sum, beyond.values()))
    usual_s = sum(each**2 for each in beyond[slowest]) / (sum(beyond[slowest]) or 1.0)  # weighed by itself
    least_s = max(LONGER_PART * fmean(blocks[0].step_s()), USUAL_PART * usual_s)
    return {
        "slowest_in_steps_fraction": sum(each > least_s for each in beyond[slowest]) / alike,
        "slowest_of_waiting_fraction": sum(beyond[slowest]) / lost_s if lost_s else 1.0,
    }


def differences(ranks: Sequence[RankSamples], slowest: int, fastest: int | None) -> dict[str, float]:
    """What is different where the slowest rank runs: its cores' or its device's clock, heat.

    Beside the fastest one, or, where that is not known, beside the one whose clocks are the fastest.
    """
    slow = next((rank.clocks for rank in ranks if rank.rank == slowest), None)
    others = [rank.clocks for rank in ranks if rank.clocks and (rank.rank == fastest or fastest is None)]
    found: dict[str, float] = {}
    if slow is None:
        return found
    for name in ("cpu_mhz", "device_mhz"):
        mine, theirs = getattr(slow, name), max((getattr(each, name) or 0.0 for each in others), default=0.0)
        if mine is not None and mine < SLOWER_CLOCK * theirs:
            found |= {f"slow_{name}": mine, f"fast_{name}": theirs}
    if "slow_device_mhz" in found and slow.device_c is not None:
        found["slow_device_c"] = slow.device_c
    if slow.cpu_throttled:
        found["slow_cpu_throttled"] = slow.cpu_throttled
    return found


WAITS_FOR_OTHERS = frozenset({"communication", "bubble"})


def _core_wait(rank: RankSamples) -> float:
    """Share of its counted steps that a rank waits for a core."""
    blocks = [block for block in rank.blocks if block.kind in ("loader", "plain")]
    return sum(block.run_queue_s or 0.0 for block in blocks) / (sum(block.steps_s for block in blocks) or 1.0)


def _block(rank: RankSamples) -> Block | None:
    """The steps with their input."""
    return next((block for block in rank.blocks if block.kind in ("loader", "plain")), None)


def _own_steps_s(block: Block) -> list[float]:
    """Seconds of each kept step without waiting for others."""
    own = [seconds for name, seconds in block.parts.items() if name not in WAITS_FOR_OTHERS]
    return [sum(parts) for parts in zip(*own, strict=True)]


def _parts_of_step_s(rank: RankSamples) -> dict[str, float]:
    """Mean seconds of each part of a rank's steps."""
    block = _block(rank)
    return {} if block is None else {name: seconds / block.num_steps for name, seconds in block.parts_s().items()}


def _own_s(rank: RankSamples) -> float | None:
    """Seconds of a rank's step that are its own: no exchange, nor waiting for others in it. None where not seen."""
    looks, block = rank.looks, next((block for block in rank.blocks if block.kind == "loader"), None)
    if looks is None or "exchange" not in looks.body or block is None:
        return None
    seen, parts = rank.seen_readers, block.parts_s()
    body = sum(seconds for name, seconds in parts.items() if name != "load")
    waits = lost_time.of_body(looks, seen, False).get(UNSEEN, 0.0) if seen is not None else 0.0
    return (sum(parts.values()) - body * waits) / num_steps(rank)
