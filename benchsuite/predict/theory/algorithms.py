"""Coefficients of collective algorithms: messages, arrays on the busiest link and arrays added up, one after the other.

Of N ranks, as `collectives.terms` gives them; sources and conditions stand in `benchsuite.predict.theory.collectives`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.traffic import Shape, torus_shape

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
