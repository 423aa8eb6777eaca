"""Pipeline schedules as data: each stage's order of work, and when it is done if every dependency is waited for.

p stages, m microbatches, v chunks a stage.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import not_negative, whole
from benchsuite.results.report.modelled import Slot

Kind = Literal["F", "B", "W"]
"""Forward pass, gradient of its input, gradient of its weights."""


Order = list[tuple[Kind, int, int]]
"""Kind, microbatch, chunk, as one stage does them."""


MAX_STAGES, MAX_SLOTS = 1024, 10**5
"""Limits of what a schedule is made for: some seconds of work."""
Timeline = tuple[tuple[Slot, ...], ...]
"""The slots of each stage in the order they are done."""


def schedule(
    name: str,
    num_stages: int,
    num_microbatches: int,
    interleave: int = 1,
    t_f: float | Sequence[float] = 1.0,
    t_b: float | Sequence[float] = 1.0,
    t_w: float | Sequence[float] = 1.0,
    p2p_s: float = 0.0,
) -> Timeline:
    """When each stage does what in one step.

    `name`: naive | gpipe | 1f1b | interleaved | zero_bubble (interleaved too) | zb-h1 | zb-h2 | zbv.
    `t_f`, `t_b` and `t_w`: a stage's whole forward pass of one microbatch, gradient of its input, of its weights (a
    chunk takes 1/v of each), one number or one for each stage; schedules that don't split the backward pass take
    t_b + t_w in one B.
    `p2p_s`: from one stage to the next, hidden where there is other work.
    Orders: Huang et al. 2019 (gpipe), Narayanan et al. 2019 and 2021 (1f1b, interleaved), Qi et al. 2023 and 2024
    (zb-h1, zb-h2, zbv; optimizer steps without a barrier).

    Raises:
        UserError: an unknown name, a number out of range, or microbatches that the schedule cannot take.
    """
    whole(num_stages=num_stages, num_microbatches=num_microbatches, interleave=interleave)
    not_negative(t_f=t_f, t_b=t_b, t_w=t_w, p2p_s=p2p_s)
    name = canonical(name)
    name = "interleaved" if name == "1f1b" and interleave > 1 else name
    check_microbatches(name, num_stages, num_microbatches, interleave)
    if num_stages > MAX_STAGES or num_stages * num_microbatches * interleave > MAX_SLOTS:
        raise UserError(
            f"{name}: {num_stages} stages x {num_microbatches} microbatches x {interleave} chunks; "
            f"allowed: {MAX_STAGES:,} stages, and {MAX_SLOTS:,} in all"
        )
    chunks = 2 if name in V_SHAPED else interleave
    split = name in SPLIT
    of_stages = [_of_stages(key, given, num_stages) for key, given in (("t_f", t_f), ("t_b", t_b), ("t_w", t_w))]
    seconds = [
        {"F": f / chunks, "B": (b if split else b + w) / chunks, "W": w / chunks}
        for f, b, w in zip(*of_stages, strict=True)
    ]
    orders = [ORDERS[name](stage, num_stages, num_microbatches, interleave) for stage in range(num_stages)]
    return _run(orders, [_virtual(name, stage, num_stages, chunks) for stage in range(num_stages)], seconds, p2p_s)


def _of_stages(key: str, given: float | Sequence[float], num_stages: int) -> list[float]:
    """A duration of each stage."""
    found = [float(value) for value in np.atleast_1d(np.asarray(given, dtype=np.float64))]
    if len(found) not in (1, num_stages):
        raise UserError(f"{key} has {len(found)} values; allowed: one, or num_stages = {num_stages}")
    return found * num_stages if len(found) == 1 else found


def canonical(name: str) -> str:
    """A schedule's name as this module writes it: 1F1B, ZB_H1 and zero-bubble are 1f1b, zb-h1 and zero_bubble.

    Raises:
        UserError: there is no such schedule.
    """
    found = {known.replace("_", "-"): known for known in ORDERS}.get(str(name).lower().replace("_", "-"))
    if found is None:
        raise refuse("schedule", name, ORDERS)
    return found


def check_microbatches(name: str, num_stages: int, num_microbatches: int, interleave: int) -> None:
    """UserError where a schedule cannot take so many chunks or microbatches, with the arithmetic."""
    if interleave > 1 and name not in INTERLEAVED:
        raise UserError(
            f"interleave {interleave} with schedule {name!r} is not allowed; allowed: 1, or {', '.join(INTERLEAVED)}"
        )
    if interleave > 1 and num_microbatches % num_stages:
        raise UserError(
            f"{name}: num_microbatches {num_microbatches} % num_stages {num_stages} = "
            f"{num_microbatches % num_stages}; allowed: 0"
        )
    if name == "zbv" and num_microbatches < 2 * num_stages - 1:
        raise UserError(
            f"zbv: num_microbatches {num_microbatches} < 2 num_stages - 1 = {2 * num_stages - 1}; allowed: that or more"
        )


def makespan(timeline: Timeline) -> float:
    """Seconds from the first start to the last end over stages."""
    slots = [slot for stage in timeline for slot in stage]
    return max(slot.end_s for slot in slots) - min(slot.start_s for slot in slots)


def idle_fractions(timeline: Timeline) -> list[float]:
    """The share of the makespan in which each stage does nothing."""
    total = makespan(timeline)
    return [1 - sum(slot.end_s - slot.start_s for slot in stage) / total for stage in timeline]


def bubbles(timeline: Timeline) -> list[float]:
    """The time between its first start and last end in which each stage does nothing.

    What counts where optimizer steps need no barrier, as in the zero-bubble schedules.
    """
    return [stage[-1].end_s - stage[0].start_s - sum(slot.end_s - slot.start_s for slot in stage) for stage in timeline]


def peak_in_flight(timeline: Timeline) -> list[float]:
    """The most microbatches whose activations each stage holds at once, in whole stages' worth (chunks / v).

    An activation is held from the start of F to the end of the last piece of work that needs it (W, else B).
    """
    return [_peak(stage) for stage in timeline]


def _peak(stage: tuple[Slot, ...]) -> float:
    last: Kind = "W" if any(slot.kind == "W" for slot in stage) else "B"
    held = most = 0
    for slot in stage:
        held += slot.kind == "F"
        most = max(most, held)
        held -= slot.kind == last
    return most / (1 + max(slot.chunk for slot in stage))


def _virtual(name: str, stage: int, num_stages: int, chunks: int) -> list[int]:
    """The place in the model of each chunk of a stage; V_SHAPED go back through the stages with the second half."""
    if name in V_SHAPED:
        return [stage, 2 * num_stages - 1 - stage]
    return [chunk * num_stages + stage for chunk in range(chunks)]


def _run(
    orders: list[Order], places: list[list[int]], seconds: Sequence[Mapping[str, float]], p2p_s: float
) -> Timeline:
    """Each stage takes its next piece of work as soon as it is free and what that needs is there."""
    ends: dict[tuple[str, int, int], tuple[float, int]] = {}
    done: list[list[Slot]] = [[] for _ in orders]
    last_place = max(max(of) for of in places)
    waiting = True
    while waiting:
        waiting = False
        for stage, order in enumerate(orders):
            while len(done[stage]) < len(order):
                kind, microbatch, chunk = order[len(done[stage])]
                place = places[stage][chunk]
                needed = [(k, microbatch, at) for k, at in _needs(kind, place, last_place)]
                if any(need not in ends for need in needed):
                    break
                there = [ends[need][0] + (p2p_s if ends[need][1] != stage else 0.0) for need in needed]
                start = max([*there, done[stage][-1].end_s if done[stage] else 0.0])
                done[stage].append(Slot(stage, kind, microbatch, chunk, start, start + seconds[stage][kind]))
                ends[kind, microbatch, place] = start + seconds[stage][kind], stage
                waiting = True
    assert all(len(slots) == len(order) for slots, order in zip(done, orders, strict=True)), (
        "a schedule that waits on itself"
    )
    return tuple(tuple(slots) for slots in done)


def _needs(kind: Kind, place: int, last_place: int) -> list[tuple[str, int]]:
    """What has to be done before, as kind and place in the model."""
    if kind == "F":
        return [("F", place - 1)] if place else []
    if kind == "W":
        return [("B", place)]
    return [("F", place), ("B", place + 1)] if place < last_place else [("F", place)]


def _naive(stage: int, p: int, m: int, v: int) -> Order:
    """One microbatch through all stages and back before the next."""
    return [(kind, k, 0) for k in range(m) for kind in ("F", "B")]


def _gpipe(stage: int, p: int, m: int, v: int) -> Order:
    return [*(("F", k, 0) for k in range(m)), *(("B", k, 0) for k in range(m))]


def _1f1b(stage: int, p: int, m: int, v: int) -> Order:
    warm = min(p - stage - 1, m)
    order: Order = [("F", k, 0) for k in range(warm)]
    for k in range(m - warm):
        order += [("F", warm + k, 0), ("B", k, 0)]
    return [*order, *(("B", k, 0) for k in range(m - warm, m))]


def _interleaved(stage: int, p: int, m: int, v: int) -> Order:
    """Megatron-LM's: chunks in groups of p microbatches; all forward first where m = p. One chunk: 1F1B."""
    if v == 1:
        return _1f1b(stage, p, m, v)
    warm = m * v if m == p else min(m * v, (p - stage - 1) * 2 + (v - 1) * p)
    forward, backward = _in_groups(p, m, v)
    order = forward[:warm]
    for k in range(m * v - warm):
        order += [forward[warm + k], backward[k]]
    return order + backward[m * v - warm :]


def _in_groups(p: int, m: int, v: int) -> tuple[Order, Order]:
    """All chunks' forward and backward passes: p microbatches through each chunk in turn, then the next p."""
    turns = [(k // (p * v) * p + k % p, k % (p * v) // p) for k in range(m * v)]
    return [("F", k, chunk) for k, chunk in turns], [("B", k, v - 1 - chunk) for k, chunk in turns]


def _zero_bubble(stage: int, p: int, m: int, v: int) -> Order:
    """PyTorch's ScheduleInterleavedZeroBubble; ZB-H1 with one chunk."""
    return _deferred(stage, p, m, v, (v - 1) * p + p - stage, stage)


def _deferred(stage: int, p: int, m: int, v: int, warm: int, deferred: int) -> Order:
    """`warm` chunks forward, then one back and one forward; W begins when `deferred` of them wait."""
    forward, backward = _in_groups(p, m, v)
    order, ahead, weights = forward[:warm], forward[warm:], 0
    for k, work in enumerate(backward):
        order.append(work)
        if k - weights >= deferred:
            order.append(("W", *backward[weights][1:]))
            weights += 1
        order += ahead[k : k + 1]
    return [*order, *(("W", *work[1:]) for work in backward[weights:])]


def _zb_h2(stage: int, p: int, m: int, v: int) -> Order:
    return _deferred(stage, p, m, v, 2 * (p - stage) - 1, 2 * stage)


ZBV_WORK: tuple[tuple[Kind, int], ...] = (("F", 0), ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))


def _zbv(stage: int, p: int, m: int, v: int) -> Order:
    """Qi et al. 2024 (arXiv:2405.15362): chunk 0 goes down the stages, chunk 1 comes back up."""
    counts: dict[tuple[Kind, int], int] = {}

    def do(*work: tuple[Kind, int]) -> Iterator[tuple[Kind, int, int]]:
        for kind, chunk in work:
            microbatch = counts.get((kind, chunk), 0)
            if microbatch < m:
                counts[kind, chunk] = microbatch + 1
                yield kind, microbatch, chunk

    f0, b0, w0, f1, b1, w1 = ZBV_WORK
    order: Order = []
    phases: list[tuple[int, list[tuple[Kind, int]]]] = [
        (2 * (p - stage) - 1, [f0]),
        (stage, [f1, f0]),
        (p - stage, [f1, b1, w1]),
        (m - p, [f0, b0, w0, f1, b1, w1]),
        (stage, [b0, b1]),
        (p - stage, [b0, w0]),
        (m, [w1]),
        (m, [w0]),
    ]
    for repeats, work in phases:
        for _ in range(repeats):
            order += do(*work)
    return order


INTERLEAVED = ("interleaved", "zero_bubble")
"""Schedules that take several chunks a stage."""
SPLIT = ("zero_bubble", "zb-h1", "zb-h2", "zbv")
"""Schedules that split the backward pass in B and W."""
V_SHAPED = ("zbv",)
"""Schedules with two chunks a stage, of which the second goes back through the stages."""
ORDERS: dict[str, Callable[[int, int, int, int], Order]] = {
    "naive": _naive,
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
    "zb-h1": _zero_bubble,
    "zb-h2": _zb_h2,
    "zbv": _zbv,
}
