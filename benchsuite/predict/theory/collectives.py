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
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, whole

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


Shape = tuple[int, int]


@dataclass(frozen=True)
class Terms:
    """Coefficients of t = latency alpha + wire D beta + reduced D gamma, float64 of `num_ranks`' shape."""

    latency: Floats
    """Messages one after the other."""
    wire: Floats
    """Times D: bytes one after the other on the busiest link."""
    reduced: Floats
    """Times D: bytes added up one after the other."""


def torus_shape(num_ranks: int, shape: Shape | None = None) -> Shape:
    """(X, Y) of a torus: `shape` if it holds as many ranks, else the squarest there is, X the larger.

    Raises:
        UserError: X * Y is not the number of ranks.
    """
    if shape is None:
        side = next(side for side in range(int(num_ranks**0.5), 0, -1) if num_ranks % side == 0)
        return num_ranks // side, side
    if min(shape) < 1 or shape[0] * shape[1] != num_ranks:
        raise UserError(f"shape {shape[0]} x {shape[1]} = {shape[0] * shape[1]} ranks; allowed: X x Y = {num_ranks}")
    return shape


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
    on_wire: Floats = np.vectorize(partial(_sent_by_all, op, algorithm), otypes=[float])(num_ranks)
    return latency * alpha + on_wire * size * beta


def _sent_by_all(op: str, algorithm: str, num_ranks: int) -> float:
    """Arrays that all ranks together send: N - 1, twice where there and back, unless `SENT_BY_ALL` says otherwise."""
    n = int(num_ranks)
    if n == 1:
        return 0.0
    if (op, algorithm) in SENT_BY_ALL:
        return SENT_BY_ALL[op, algorithm](n, 1 << (n.bit_length() - 1))
    return 1.0 if op == "send_recv" else (n - 1.0) * (2 if op == "all_reduce" else 1)


def _scattered(n: int) -> float:
    """Arrays in a binomial scatter, in which a child is sent the blocks of all below it."""
    return sum(min(rank & -rank, n - rank) for rank in range(1, n)) / n


SENT_BY_ALL: Mapping[tuple[str, str], Callable[[int, int], float]] = {
    ("all_reduce", "recursive_doubling"): lambda n, power: power * (power.bit_length() - 1) + 2 * (n - power),
    ("all_reduce", "naive"): lambda n, power: n * (n - 1),
    ("reduce_scatter", "recursive_halving"): lambda n, power: n - 1 + (n - power) / n,
    ("all_gather", "recursive_doubling"): lambda n, power: n - 1 + (n - power) / n,
    ("all_to_all", "bruck"): lambda n, power: sum(distance.bit_count() for distance in range(n)),
    ("broadcast", "scatter_allgather"): lambda n, power: _scattered(n) + n - 1,
}
"""Of N ranks, the largest power of two within N; where ranks fold, a guest's whole array and its block are sent too."""


BACKEND = "backend"
"""The algorithm that the backend chooses."""


Form = tuple[Any, Any, Any]
"""Latency, wire, reduced."""


def _log(n: Floats) -> Floats:
    """Steps of a tree, the logarithm rounded up; exact where N is a power of two."""
    mantissa, exponent = np.frexp(n)
    return np.where(mantissa == 0.5, exponent - 1.0, exponent)


def _folded(n: Floats) -> tuple[Floats, Floats, Floats]:
    """The power of two p within N, its exponent, and 1 where ranks are left over (FORMULAS: two extra steps)."""
    exponent = np.frexp(n)[1].astype(np.float64) - 1
    power = np.exp2(exponent)
    return power, exponent, (n > power).astype(np.float64)


def _ring(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return n - 1, (n - 1) / n, 0.0


def _ring_reducing(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return n - 1, (n - 1) / n, (n - 1) / n


def _ring_all_reduce(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return 2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n


def _doubling_all_reduce(n: Floats, shape: Shape | None, c: Floats) -> Form:
    _, exponent, over = _folded(n)
    return exponent + 2 * over, exponent + 2 * over, exponent + over


def _halving_doubling(n: Floats, shape: Shape | None, c: Floats) -> Form:
    power, exponent, over = _folded(n)
    moved = (power - 1) / power
    return 2 * exponent + 2 * over, 2 * moved + 2 * over, moved + over


def _blocks_of_folded(n: Floats) -> Floats:
    """Of N, the blocks that rank 0 takes in while p ranks halve: with w others' blocks come those of their guests.

    The sum of w + min(w, N - p) over w = 1, 2, 4 .. p/2; N - 1 where N is a power of two.
    """
    power, exponent, _ = _folded(n)
    guests = n - power
    full = np.frexp(guests)[1].astype(np.float64)  # steps in which every one of w ranks has a guest
    return power - 1 + np.exp2(full) - 1 + (exponent - full) * guests


def _recursive_halving(n: Floats, shape: Shape | None, c: Floats) -> Form:
    _, exponent, over = _folded(n)
    moved = _blocks_of_folded(n) / n
    return exponent + 2 * over, moved + over * (1 + 1 / n), moved + over


def _doubling_all_gather(n: Floats, shape: Shape | None, c: Floats) -> Form:
    _, exponent, over = _folded(n)
    return exponent + 2 * over, _blocks_of_folded(n) / n + over * (1 + 1 / n), 0.0


def _tree(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return 2 * _log(n), 2 * _log(n), _log(n)


def _double_tree(n: Floats, shape: Shape | None, c: Floats) -> Form:
    """In chunks so small that the pipe is always full."""
    return 2 * _log(n), 2.0, 1.0


def _torus(n: Floats, shape: Shape | None, c: Floats) -> Form:
    steps = np.vectorize(lambda ranks: 2 * (sum(torus_shape(int(ranks), shape)) - 2), otypes=[float])
    return steps(n), 2 * (n - 1) / n, (n - 1) / n


def _naive(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return n - 1, n - 1, n - 1


def _parameter_server_sharded(n: Floats, shape: Shape | None, c: Floats) -> Form:
    """Every rank serves 1/N, in an order in which no two messages meet at a port: as many messages as a ring."""
    return _ring_all_reduce(n, shape, c)


def _parameter_server(n: Floats, shape: Shape | None, c: Floats) -> Form:
    """One server, which is a rank too, on one link: N - 1 arrays in, then N - 1 out."""
    return 2 * (n - 1), 2 * (n - 1), n - 1


def _bruck(n: Floats, shape: Shape | None, c: Floats) -> Form:
    bits = np.vectorize(lambda ranks: sum(k.bit_count() for k in range(int(ranks))), otypes=[float])
    return _log(n), bits(n) / n, 0.0


def _binomial(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return _log(n), _log(n), 0.0


def _binomial_reduce(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return _log(n), _log(n), _log(n)


def _scatter_allgather(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return _log(n) + n - 1, 2 * (n - 1) / n, 0.0


def _chain(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return n - 2 + c, (n - 2 + c) / c, 0.0


def _direct(n: Floats, shape: Shape | None, c: Floats) -> Form:
    return np.ones_like(n), np.ones_like(n), 0.0


FORMS: dict[str, dict[str, Callable[[Floats, Shape | None, Floats], Form]]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "recursive_doubling": _doubling_all_reduce,
        "halving_doubling": _halving_doubling,
        "tree": _tree,
        "double_tree": _double_tree,
        "torus": _torus,
        "naive": _naive,
        "parameter_server": _parameter_server,
        "parameter_server_sharded": _parameter_server_sharded,
    },
    "reduce_scatter": {"ring": _ring_reducing, "recursive_halving": _recursive_halving},
    "all_gather": {"ring": _ring, "recursive_doubling": _doubling_all_gather},
    "all_to_all": {"pairwise": _ring, "bruck": _bruck},
    "broadcast": {"binomial": _binomial, "scatter_allgather": _scatter_allgather, "chain": _chain},
    "reduce": {"binomial": _binomial_reduce},
    "send_recv": {"direct": _direct},
}
