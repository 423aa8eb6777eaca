"""Time of ring collectives in the alpha-beta-gamma model, in closed form.

alpha: seconds a message; beta: seconds a byte on a rank's link (full duplex, one port); gamma: seconds a byte reduced.
`num_bytes` D is the whole array as nccl-tests count it (nccl-tests/src/*.cu, PERFORMANCE.md): every rank's input of an
all_reduce, the gathered array of an all_gather, one rank's input of a reduce_scatter or of an all_to_all. Every form
is t = A alpha + B D beta + C D gamma; `terms` gives A, B, C. Conditions: equal ranks and links, a message never shares
its link, sizes large enough that rounding to whole elements does not show. Protocols change with size on real networks:
fit alpha and beta piecewise. Source: Patarasuk and Yuan 2009.

Other algorithms are step tables (`benchsuite.probe.comm.step_tables`), which tell their messages and bytes.
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
"""Of a number or an array of ranks, busbw / algbw: it tells of the hardware whatever their number (nccl-tests'
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


def hierarchical_time_s(
    num_nodes: ArrayLike,
    ranks_per_node: ArrayLike,
    num_bytes: ArrayLike,
    alpha_intra_s: ArrayLike,
    beta_intra_s_per_byte: ArrayLike,
    alpha_inter_s: ArrayLike,
    beta_inter_s_per_byte: ArrayLike,
    op: str = "all_reduce",
) -> Floats:
    """All_reduce of D bytes on n nodes of g ranks: reduce_scatter in the node, all_reduce between, all_gather in it.

    2(g-1) a1 + 2(g-1)/g D b1 + 2(n-1) a2 + 2(n-1)/n (D/g) b2; `op` reduce_scatter or all_gather: half of it, one
    inside and one of D/g between. `beta_inter_s_per_byte` is that of one rank's share of
    the node's network (g ranks on one adapter: g times the adapter's). Rings, one after the other, not pipelined.
    """
    g, _ = whole(ranks_per_node=ranks_per_node, num_nodes=num_nodes)
    (size,) = not_negative(num_bytes=num_bytes)
    inside = time_s(op, ranks_per_node, size, alpha_intra_s, beta_intra_s_per_byte)
    return inside + time_s(op, num_nodes, size / g, alpha_inter_s, beta_inter_s_per_byte)
