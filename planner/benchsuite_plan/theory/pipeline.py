"""Pipeline parallelism: closed forms of bubbles, step time, and microbatches in flight.

p num_stages, m num_microbatches, v interleave (chunks a stage); F, B, W: seconds that a stage takes for a microbatch's
forward pass, for the gradient of its input, and for that of its weights. `benchsuite.predict.theory.schedules`
simulates the same schedules from their dependencies, and tests hold one to the other.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import UserError
from benchsuite.predict.theory.arrays import Floats, not_negative, whole
from benchsuite.predict.theory.schedules import INTERLEAVED, canonical, schedule

__all__ = ["SCHEDULES", "bubble_fraction", "bubble_s", "in_flight", "schedule", "step_s"]


def bubble_fraction(
    schedule: str,
    num_stages: ArrayLike,
    num_microbatches: ArrayLike,
    interleave: ArrayLike = 1,
    forward_s: ArrayLike = 1.0,
    backward_s: ArrayLike = 1.0,
    weight_s: ArrayLike = 1.0,
) -> Floats:
    """Idle share of the total step time: `bubble_s` / `step_s`.

    (p - 1)/(m + p - 1) for gpipe and 1f1b, (p - 1)/(v m + p - 1) interleaved (arXiv:2104.04473, section 2.2), whatever
    the durations; (p - 1)/p for naive; of zero-bubble schedules it depends on F : B : W (equal by default).
    """
    given = (schedule, num_stages, num_microbatches, interleave, forward_s, backward_s, weight_s)
    return bubble_s(*given) / step_s(*given)


def bubble_s(
    schedule: str,
    num_stages: ArrayLike,
    num_microbatches: ArrayLike,
    interleave: ArrayLike = 1,
    forward_s: ArrayLike = 1.0,
    backward_s: ArrayLike = 1.0,
    weight_s: ArrayLike = 1.0,
) -> Floats:
    """Seconds of a step in which the busiest stage waits; equal stages, transfers hidden.

    gpipe, 1f1b (p-1)(F+B+W) | interleaved (p-1)(F+B+W)/v | naive m (p-1)(F+B+W) | zb-h1 (p-1)(F+B-W), never below
    (p-1) B | zero_bubble: that over v | zb-h2 (p-1)(F+B-2W), never below (p-1)(B-F) or 0 | zbv 0, at F = B = W alone.
    Narayanan et al. 2021 (arXiv:2104.04473); Qi et al. 2023 (arXiv:2401.10241) and 2024 (arXiv:2405.15362), for m of p
    (zb-h1, zero_bubble) or 2p - 1 (zb-h2, zbv) and more, and optimizer steps without a barrier (with one, a step takes
    at least (p-1) F more than its work); the lower ends, where W > F, are those of the simulated schedules. `1f1b` with
    interleave above 1 is interleaved.

    Raises:
        UserError: an unknown schedule, a number out of range, m not a multiple of p where chunks are interleaved, or
            microbatches or durations for which a schedule has no closed form (simulate it then: `schedules.schedule`).
    """
    p, m, v = whole(num_stages=num_stages, num_microbatches=num_microbatches, interleave=interleave)
    f, b, w = not_negative(forward_s=forward_s, backward_s=backward_s, weight_s=weight_s)
    name = _known(schedule, p, m, v)
    p, m, v, f, b, w = np.broadcast_arrays(p, m, v, f, b, w)
    if name == "zbv" and not (np.all(f == b) and np.all(b == w)):
        raise UserError("zbv has a closed form only where forward_s, backward_s and weight_s are equal; simulate it")
    if name in LEAST_MICROBATCHES:
        _check_enough(name, p, m)
    if name == "zb-h2":
        return (p - 1) * np.maximum(np.maximum(f + b - 2 * w, b - f), 0.0)
    if name in ("zb-h1", "zero_bubble"):
        return (p - 1) * np.maximum(f + b - w, b) / v
    return BUBBLES[name](p, m, v) * (f + b + w)


def step_s(
    schedule: str,
    num_stages: ArrayLike,
    num_microbatches: ArrayLike,
    interleave: ArrayLike = 1,
    forward_s: ArrayLike = 1.0,
    backward_s: ArrayLike = 1.0,
    weight_s: ArrayLike = 1.0,
) -> Floats:
    """Seconds of a step: m (F + B + W) + `bubble_s`; (m + p - 1)(F + B + W) for gpipe and 1f1b."""
    bubble = bubble_s(schedule, num_stages, num_microbatches, interleave, forward_s, backward_s, weight_s)
    (m,) = whole(num_microbatches=num_microbatches)
    return m * sum(not_negative(forward_s=forward_s, backward_s=backward_s, weight_s=weight_s)) + bubble


def in_flight(
    schedule: str,
    num_stages: ArrayLike,
    num_microbatches: ArrayLike,
    stage: ArrayLike = 0,
    interleave: ArrayLike = 1,
) -> Floats:
    """Microbatches whose activations stage `stage` (0 first) holds at most, in whole stages' worth (a chunk is 1/v).

    gpipe m | 1f1b min(m, p - i) | interleaved min(m v, 2(p - i - 1) + (v - 1) p + 1)/v, m = p: p | naive 1 | zb-h1,
    zero_bubble, zbv min(m, p) | zb-h2 min(m, 2p - 1). Zero-bubble schedules: activations counted as held until W.
    """
    p, m, v = whole(num_stages=num_stages, num_microbatches=num_microbatches, interleave=interleave)
    (i,) = not_negative(stage=stage)
    if np.any(i >= p):
        raise UserError(f"stage {np.max(i):g} is not allowed; allowed: 0 to num_stages - 1")
    form = IN_FLIGHT[_known(schedule, p, m, v)]
    return np.array(form(*np.broadcast_arrays(p, m, v, i)))[()]


def _known(schedule: str, p: Floats, m: Floats, v: Floats) -> str:
    """The schedule's name, where it can take so many microbatches and chunks."""
    name, several = canonical(schedule), np.any(v > 1)
    if several and name not in (*INTERLEAVED, "1f1b"):
        allowed = f"1, or {', '.join(INTERLEAVED)}"
        raise UserError(f"interleave {np.max(v):g} with schedule {name!r} is not allowed; allowed: {allowed}")
    if np.any((v > 1) & (m % p != 0)):
        raise UserError("interleaved: num_microbatches % num_stages is not 0; allowed: multiples of num_stages")
    return "interleaved" if several and name == "1f1b" else name


def _check_enough(name: str, p: Floats, m: Floats) -> None:
    """UserError where the microbatches are too few to fill a zero-bubble schedule's pipe."""
    words, least = LEAST_MICROBATCHES[name]
    lacking = m < least(p)
    if np.any(lacking):
        few = np.argmax(lacking)
        raise UserError(
            f"{name} with {m.flat[few]:g} microbatches on {p.flat[few]:g} stages has no closed form; allowed: "
            f"{words} = {least(p).flat[few]:g} or more; simulate it"
        )


def _interleaved_in_flight(p: Floats, m: Floats, v: Floats, i: Floats) -> Floats:
    chunks = np.where(m == p, p, np.minimum(m * v, 2 * (p - i - 1) + (v - 1) * p + 1) / v)
    return np.where(v > 1, chunks, np.minimum(m, p - i))


BUBBLES: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "naive": lambda p, m, v: m * (p - 1),
    "gpipe": lambda p, m, v: p - 1,
    "1f1b": lambda p, m, v: p - 1,
    "interleaved": lambda p, m, v: (p - 1) / v,
    "zbv": lambda p, m, v: 0 * p,
}
"""Bubbles in units of F + B + W."""
LEAST_MICROBATCHES: dict[str, tuple[str, Callable[[Floats], Floats]]] = {
    "zb-h1": ("p", lambda p: p),
    "zero_bubble": ("p", lambda p: p),
    "zb-h2": ("2p - 1", lambda p: 2 * p - 1),
    "zbv": ("2p - 1", lambda p: 2 * p - 1),
}
"""Microbatches from which on the closed form of a bubble holds, in words and by stages."""
IN_FLIGHT: dict[str, Callable[[Floats, Floats, Floats, Floats], Floats]] = {
    "naive": lambda p, m, v, i: np.ones_like(p),
    "gpipe": lambda p, m, v, i: m,
    "1f1b": lambda p, m, v, i: np.minimum(m, p - i),
    "interleaved": _interleaved_in_flight,
    "zero_bubble": lambda p, m, v, i: np.minimum(m, p),
    "zb-h1": lambda p, m, v, i: np.minimum(m, p),
    "zb-h2": lambda p, m, v, i: np.minimum(m, 2 * p - 1),
    "zbv": lambda p, m, v, i: np.minimum(m, p),
}
SCHEDULES = tuple(IN_FLIGHT)
