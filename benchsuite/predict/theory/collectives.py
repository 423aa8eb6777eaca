"""Time of collectives in the alpha-beta-gamma model: closed forms per algorithm.

alpha: seconds a message; beta: seconds a byte on a rank's link (full duplex, one port); gamma: seconds a byte reduced.
`num_bytes` D is the whole array as nccl-tests count it (nccl-tests/src/*.cu, PERFORMANCE.md): every rank's input of an
all_reduce, the gathered array of an all_gather, one rank's input of a reduce_scatter or of an all_to_all. Every form
is t = A alpha + B D beta + C D gamma; `terms` gives A, B, C. Conditions: equal ranks and links, a message never shares
its link, sizes large enough that rounding to whole elements does not show. Where a send is over once it is buffered, as
over TCP, it shares its link with the next one: a root of a tree serves its children at once, the subtree of the first
begins later, and a broadcast takes up to k (k + 1)/2 arrays in place of k = log2 N. Protocols change with size on real
networks: fit alpha and beta piecewise. Sources: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", 2005; Bruck et al. 1997; Sanders, Speck, Traff 2009 (two trees); Patarasuk and Yuan 2009 (ring).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.algorithms import FORMS
from benchsuite.predict.theory.arrays import Floats, not_negative, whole
from benchsuite.predict.theory.traffic import Shape, sent_bytes_per_rank

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
HIERARCHICAL = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Terms:
    """Coefficients of t = latency alpha + wire D beta + reduced D gamma, float64 of `num_ranks`' shape."""

    latency: Floats
    """Messages one after the other."""
    wire: Floats
    """Times D: bytes one after the other on the busiest link."""
    reduced: Floats
    """Times D: bytes added up one after the other."""


def time_s(
    op: str,
    algorithm: str,
    num_ranks: ArrayLike,
    num_bytes: ArrayLike,
    alpha_s: ArrayLike,
    beta_s_per_byte: ArrayLike,
    gamma_s_per_byte: ArrayLike = 0.0,
    shape: Shape | None = None,
    chunks: ArrayLike = 1,
) -> Floats:
    """Seconds of one collective; arrays broadcast; one rank costs 0.

    `shape`: X, Y of a torus (default: the squarest); `chunks`: messages that an array is cut into in a chain broadcast
    (see `best_chunks`).

    Raises:
        UserError: an unknown op or algorithm, a number out of its range, or a shape that does not hold the ranks.
    """
    size, alpha, beta, gamma = not_negative(
        num_bytes=num_bytes, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte, gamma_s_per_byte=gamma_s_per_byte
    )
    of = terms(op, algorithm, num_ranks, shape, chunks)
    return of.latency * alpha + of.wire * size * beta + of.reduced * size * gamma


def terms(op: str, algorithm: str, num_ranks: ArrayLike, shape: Shape | None = None, chunks: ArrayLike = 1) -> Terms:
    """The three coefficients of an algorithm, all 0 for one rank; a design matrix to fit alpha, beta and gamma with."""
    n, c = whole(num_ranks=num_ranks, chunks=chunks)
    if op not in FORMS:
        raise refuse("op", op, FORMS)
    if algorithm not in FORMS[op]:
        raise refuse(f"algorithm of {op}", algorithm, FORMS[op])
    several = n > 1
    forms = FORMS[op][algorithm](np.maximum(n, 2), shape if np.any(several) else None, c)
    latency, wire, reduced = (np.where(several, form, 0.0)[()] for form in forms)
    return Terms(latency, wire, reduced)


def best_chunks(num_ranks: ArrayLike, num_bytes: ArrayLike, alpha_s: ArrayLike, beta_s_per_byte: ArrayLike) -> Floats:
    """Chunks that make a chain broadcast fastest: sqrt((N - 2) D beta / alpha), rounded, at least 1.

    From the derivative of (N - 2 + c)(alpha + D beta / c).
    """
    (n,) = whole(num_ranks=num_ranks)
    size, alpha, beta = not_negative(num_bytes=num_bytes, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.sqrt(np.maximum(n - 2, 0) * size * beta / alpha)
    chunks: Floats = np.maximum(1.0, np.rint(np.nan_to_num(best, nan=1.0, posinf=np.finfo(np.float64).max)))
    return chunks


def busbw_factor(op: str, num_ranks: ArrayLike) -> Floats:
    """busbw / algbw, where algbw = num_bytes / time (nccl-tests' PERFORMANCE.md); at one rank 0 or 1."""
    (n,) = whole(num_ranks=num_ranks)
    if op not in BUSBW:
        raise refuse("op", op, BUSBW)
    factor: Floats = BUSBW[op](n)
    return factor


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
    if op not in HIERARCHICAL:
        raise refuse("op", op, HIERARCHICAL)
    inside = time_s(op, "ring", ranks_per_node, size, alpha_intra_s, beta_intra_s_per_byte)
    return inside + time_s(op, "ring", num_nodes, size / g, alpha_inter_s, beta_inter_s_per_byte)


def shared_medium_time_s(
    op: str,
    algorithm: str,
    num_ranks: ArrayLike,
    num_bytes: ArrayLike,
    beta_s_per_byte: ArrayLike,
    alpha_s: ArrayLike = 0.0,
    shape: Shape | None = None,
) -> Floats:
    """Seconds where all ranks share one medium (loopback, one bus, one memory system): A alpha + all bytes beta.

    For a ring all_reduce 2(N-1) D beta.
    """
    size, beta, alpha = not_negative(num_bytes=num_bytes, beta_s_per_byte=beta_s_per_byte, alpha_s=alpha_s)
    latency = terms(op, algorithm, num_ranks, shape).latency
    total = np.vectorize(lambda n: sent_bytes_per_rank(op, algorithm, int(n), 1.0, shape).sum(), otypes=[float])
    on_wire: Floats = total(num_ranks)
    return latency * alpha + on_wire * size * beta


BACKEND = "backend"
"""The algorithm that the backend chooses."""
