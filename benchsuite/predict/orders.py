"""In which order each stage of a pipeline does its work, by schedule: p stages, m microbatches, v chunks a stage."""

from collections.abc import Callable, Iterator

from benchsuite.predict import vorders
from benchsuite.predict.vorders import Kind

Order = list[tuple[Kind, int, int]]
"""Kind, microbatch, chunk, as one stage does them."""


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


def _v(name: str) -> Callable[[int, int, int, int], Order]:
    """A V-shaped schedule by its building block."""
    return lambda stage, p, m, v: [*vorders.repeated(name, stage, p, m)]


INTERLEAVED = ("interleaved", "zero_bubble")
"""Schedules that take several chunks a stage."""
SPLIT = ("zero_bubble", "zb-h1", "zb-h2", "zbv", *vorders.PACES)
"""Schedules that split the backward pass in B and W."""
V_SHAPED = ("zbv", *vorders.PACES)
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
    **{name: _v(name) for name in vorders.PACES},
}
