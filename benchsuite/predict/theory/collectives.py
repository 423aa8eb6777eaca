"""Time of ring collectives in the alpha-beta-gamma model, and traffic of every all_reduce, in closed form.

alpha: seconds a message; beta: seconds a byte on a rank's link (full duplex, one port); gamma: seconds a byte reduced.
`num_bytes` D is the whole array as nccl-tests count it (nccl-tests/src/*.cu, PERFORMANCE.md): every rank's input of an
all_reduce, the gathered array of an all_gather, one rank's input of a reduce_scatter or of an all_to_all. Every form
is t = A alpha + B D beta + C D gamma; `terms` gives A, B, C. Conditions: equal ranks and links, a message never shares
its link, sizes large enough that rounding to whole elements does not show. Protocols change with size on real networks:
fit alpha and beta piecewise. Source: Patarasuk and Yuan 2009.

Other algorithms are step tables (`benchsuite.probe.comm.step_tables`), which count their messages and bytes; `traffic`
is what they must come to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, whole

BACKEND = "backend"
"""The algorithm that the backend chooses."""
BUSBW: Mapping[str, Callable[[Any], Any]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: np.ones_like(n),
    "reduce": lambda n: np.ones_like(n),
    "send_recv": lambda n: np.ones_like(n),
    "hypercube": lambda n: np.ones_like(n),
}
"""busbw / algbw of a number or an array of ranks: it tells of the hardware whatever their number (nccl-tests'
PERFORMANCE.md)."""
PASSES: Mapping[str, tuple[int, int]] = {
    "all_reduce": (2, 1),
    "reduce_scatter": (1, 1),
    "all_gather": (1, 0),
    "all_to_all": (1, 0),
}
"""How often a ring (of an all_to_all: pairs) passes an array on, and how often it is added up meanwhile."""


@dataclass(frozen=True)
class Terms:
    """Coefficients of t = latency alpha + wire D beta + reduced D gamma, float64 of `num_ranks`' shape."""

    latency: Floats
    """Messages one after the other."""
    wire: Floats
    """Times D: bytes one after the other on the busiest link."""
    reduced: Floats
    """Times D: bytes added up one after the other."""


def terms(op: str, num_ranks: ArrayLike) -> Terms:
    """The three coefficients of a ring, all 0 for one rank.

    Raises:
        UserError: an unknown op, or a number of ranks that is none.
    """
    (n,) = whole(num_ranks=num_ranks)
    if op not in PASSES:
        raise refuse("op", op, PASSES)
    passes, reductions = PASSES[op]
    share = (n - 1) / n
    return Terms(passes * (n - 1), passes * share, reductions * share)


def time_s(
    op: str,
    num_ranks: ArrayLike,
    num_bytes: ArrayLike,
    alpha_s: ArrayLike,
    beta_s_per_byte: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
) -> Floats:
    """Seconds of one collective by a ring; arrays broadcast; one rank costs 0.

    Raises:
        UserError: an unknown op, or a number out of its range.
    """
    size, alpha, beta, gamma = not_negative(
        num_bytes=num_bytes, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte, gamma_s_per_byte=gamma_s_per_byte
    )
    of = terms(op, num_ranks)
    return of.latency * alpha + of.wire * size * beta + of.reduced * size * gamma


@dataclass(frozen=True)
class Traffic:
    """What one all_reduce of D bytes takes."""

    steps: int
    """One after the other, of the rank that has most."""
    peak: int
    """Most messages that a rank sends, or receives, in one step."""
    messages: int
    """Sent by all ranks."""
    busiest: float
    """Times D: bytes that the rank sends that sends most."""
    total: float
    """Times D: bytes that all ranks send."""


def traffic(algorithm: str, num_ranks: int) -> Traffic:
    """Messages and bytes of an all_reduce on N ranks, 2 or more, by an algorithm of `TRAFFIC`.

    Patarasuk and Yuan 2009 (ring); Thakur, Rabenseifner and Gropp 2005 (doubling, halving); Li et al. 2014 (servers).

    Raises:
        UserError: an unknown algorithm, or a number of ranks that is none.
    """
    (n,) = whole(num_ranks=num_ranks)
    if algorithm not in TRAFFIC:
        raise refuse("algorithm", algorithm, TRAFFIC)
    steps, peak, messages, busiest, total = TRAFFIC[algorithm](int(n))
    return Traffic(steps, peak, messages, busiest, total)


def _folded(n: int) -> tuple[int, int, int]:
    """The power of two p within N, its exponent, and how many ranks are left over, which fold into others."""
    exponent = n.bit_length() - 1
    return 1 << exponent, exponent, n - (1 << exponent)


def _recursive_doubling(n: int) -> tuple[int, int, int, float, float]:
    p, k, guests = _folded(n)
    sent = p * k + 2 * guests
    return k + 2 * (guests > 0), 1, sent, k + (guests > 0), sent


def _halving_doubling(n: int) -> tuple[int, int, int, float, float]:
    p, k, guests = _folded(n)
    return 2 * k + 2 * (guests > 0), 1, 2 * (p * k + guests), 2 * (p - 1) / p + (guests > 0), 2 * (n - 1)


def _torus(n: int) -> tuple[int, int, int, float, float]:
    """X in a row and X Y = N, as square as can be."""
    y = next(side for side in range(int(n**0.5), 0, -1) if n % side == 0)
    steps = 2 * (n // y + y - 2)
    return steps, 1, n * steps, 2 * (n - 1) / n, 2 * (n - 1)


def _tree(n: int) -> tuple[int, int, int, float, float]:
    depth = (n - 1).bit_length()
    return 2 * depth, 1, 2 * (n - 1), depth, 2 * (n - 1)


TRAFFIC: Mapping[str, Callable[[int], tuple[int, int, int, float, float]]] = {
    "ring": lambda n: (2 * (n - 1), 1, 2 * n * (n - 1), 2 * (n - 1) / n, 2 * (n - 1)),
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "torus": _torus,
    "tree": _tree,
    "parameter_server": lambda n: (2, n - 1, 2 * (n - 1), n - 1, 2 * (n - 1)),
    "parameter_server_sharded": lambda n: (2, n - 1, 2 * n * (n - 1), 2 * (n - 1) / n, 2 * (n - 1)),
    "all_to_all": lambda n: (1, n - 1, n * (n - 1), n - 1, n * (n - 1)),
}
"""`Traffic` of N ranks. A server is a worker itself and serves the others; sharded, each rank serves a chunk."""
