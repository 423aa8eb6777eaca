"""Messages and bytes that each rank sends in a collective: what step tables and closed forms are held to.

D is the whole array as nccl-tests count it: every rank's input of an all_reduce, the gathered array of an all_gather,
the input of a reduce_scatter or of an all_to_all on one rank. Blocks are D/N bytes, not rounded. Who does what:

- not a power of two: with p the power of two below N, rank i >= p folds its array into rank i - p before and gets the
  result after (Thakur, Rabenseifner, Gropp 2005, section 4; they pair neighbours, with the same counts);
- trees are binomial and rooted at 0: rank r's children are r + 2^k for 2^k below r's lowest set bit;
- torus: rank = row * X + column; reduce_scatter along rows, all_reduce along columns, all_gather along rows;
- parameter_server: rank 0 is the server and a worker too; parameter_server_sharded: every rank serves 1/N;
- double_tree: two in-order binary trees with half of the array each, as NCCL's (Sanders, Speck, Traff 2009).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, whole
from benchsuite.predict.theory.collectives import torus_shape

Shape = tuple[int, int]
Sent = tuple[Any, Any]
"""Messages and shares of D sent, each a number that holds for all ranks or an array over ranks."""


def messages(op: str, algorithm: str, num_ranks: int, shape: Shape | None = None, chunks: int = 1) -> NDArray[np.int64]:
    """Messages that each rank sends, (num_ranks,)."""
    return np.rint(_sent(op, algorithm, num_ranks, shape, chunks)[0]).astype(np.int64)


def sent_bytes_per_rank(
    op: str, algorithm: str, num_ranks: int, num_bytes: float, shape: Shape | None = None, chunks: int = 1
) -> Floats:
    """Bytes that each rank sends, (num_ranks,) float64, in an operation on `num_bytes` (D above)."""
    (size,) = not_negative(num_bytes=num_bytes)
    return np.asarray(_sent(op, algorithm, num_ranks, shape, chunks)[1] * size, dtype=np.float64)


def _sent(op: str, algorithm: str, num_ranks: int, shape: Shape | None, chunks: int) -> tuple[Floats, Floats]:
    whole(num_ranks=num_ranks, chunks=chunks)
    if op not in SENT:
        raise refuse("op", op, SENT)
    if algorithm not in SENT[op]:
        raise refuse(f"algorithm of {op}", algorithm, SENT[op])
    zero = np.zeros(num_ranks)
    if num_ranks == 1:
        return zero, zero
    count, share = SENT[op][algorithm](num_ranks, shape, chunks)
    return zero + count, zero + share


def _folded(num_ranks: int) -> tuple[int, int, Floats, Floats]:
    """The power of two p in N, its exponent, and which ranks are folded into others, and which take one in."""
    exponent = num_ranks.bit_length() - 1
    power = 1 << exponent
    rank = np.arange(num_ranks)
    return power, exponent, (rank >= power).astype(np.float64), (rank < num_ranks - power).astype(np.float64)


def _ring(n: int, shape: Shape | None, chunks: int) -> Sent:
    return n - 1, (n - 1) / n


def _ring_all_reduce(n: int, shape: Shape | None, chunks: int) -> Sent:
    return 2 * (n - 1), 2 * (n - 1) / n


def _doubling_all_reduce(n: int, shape: Shape | None, chunks: int) -> Sent:
    _, exponent, out, host = _folded(n)
    sent = (1 - out) * exponent + out + host
    return sent, sent


def _halving_doubling(n: int, shape: Shape | None, chunks: int) -> Sent:
    power, exponent, out, host = _folded(n)
    return (1 - out) * 2 * exponent + out + host, (1 - out) * 2 * (power - 1) / power + out + host


def _recursive_halving(n: int, shape: Shape | None, chunks: int) -> Sent:
    """A host keeps its guest's block too, so that shares of D differ between ranks."""
    power, exponent, out, host = _folded(n)
    shares = np.array([_halved(rank, power, n) for rank in range(n)])
    return (1 - out) * exponent + out + host, shares + out + host / n


def _halved(rank: int, power: int, n: int) -> float:
    """Blocks of n that a rank hands over while halving among `power` ranks, each of which wants its guest's too."""
    if rank >= power:
        return 0.0
    wanted = [1 + (other + power < n) for other in range(power)]
    blocks, low, high = 0, 0, power
    while high - low > 1:
        middle = (low + high) // 2
        mine = (low, middle) if rank < middle else (middle, high)
        blocks += sum(wanted[low:high]) - sum(wanted[slice(*mine)])
        low, high = mine
    return blocks / n


def _doubling_all_gather(n: int, shape: Shape | None, chunks: int) -> Sent:
    power, exponent, out, host = _folded(n)
    shares = np.array([_doubled(rank, power, n) for rank in range(n)])
    return (1 - out) * exponent + out + host, shares + out / n + host


def _doubled(rank: int, power: int, n: int) -> float:
    """Blocks of n that a rank hands on while doubling among `power` ranks, nearest first."""
    if rank >= power:
        return 0.0
    held = [1 + (other + power < n) for other in range(power)]
    blocks, width = 0, 1
    while width < power:
        start = rank // width * width
        blocks += sum(held[start : start + width])
        width *= 2
    return blocks / n


def _children(n: int) -> Floats:
    """How many children each rank has in the binomial tree rooted at 0."""
    ranks = np.arange(1, n)
    return np.bincount(ranks & (ranks - 1), minlength=n).astype(np.float64)


def _not_root(n: int) -> Floats:
    return (np.arange(n) > 0).astype(np.float64)


def _tree(n: int, shape: Shape | None, chunks: int) -> Sent:
    sent = _not_root(n) + _children(n)
    return sent * chunks, sent


def _double_tree(n: int, shape: Shape | None, chunks: int) -> Sent:
    edges = _binary_sent(n)
    other = edges[::-1] if n % 2 == 0 else np.roll(edges, 1)
    return (edges + other) * chunks, (edges + other) / 2


def _binary_sent(n: int) -> Floats:
    """Of each rank of NCCL's in-order binary tree, 1 for its parent and 1 for each child."""
    sent = _not_root(n)
    for rank in range(1, n):
        low = rank & -rank
        parent = (rank ^ low) | (low << 1)
        sent[parent if parent < n else rank ^ low] += 1
    return sent


def _torus(n: int, shape: Shape | None, chunks: int) -> Sent:
    x, y = torus_shape(n, shape)
    return 2 * (x - 1) + 2 * (y - 1), 2 * (n - 1) / n


def _naive(n: int, shape: Shape | None, chunks: int) -> Sent:
    return n - 1, n - 1


def _parameter_server(n: int, shape: Shape | None, chunks: int) -> Sent:
    sent = np.where(np.arange(n) == 0, n - 1, 1)
    return sent, sent


def _bruck(n: int, shape: Shape | None, chunks: int) -> Sent:
    """In step k the blocks whose distance has bit k set travel on (Bruck et al. 1997)."""
    moved = sum(distance.bit_count() for distance in range(n))
    return (n - 1).bit_length(), moved / n


def _binomial(n: int, shape: Shape | None, chunks: int) -> Sent:
    return _children(n), _children(n)


def _binomial_reduce(n: int, shape: Shape | None, chunks: int) -> Sent:
    return _not_root(n), _not_root(n)


def _scatter_allgather(n: int, shape: Shape | None, chunks: int) -> Sent:
    """A binomial scatter, in which a child is sent the blocks of all below it, then a ring all_gather."""
    ranks = np.arange(1, n)
    below = np.minimum(ranks & -ranks, n - ranks)
    scattered = np.bincount(ranks & (ranks - 1), weights=below, minlength=n) / n
    return _children(n) + n - 1, scattered + (n - 1) / n


def _chain(n: int, shape: Shape | None, chunks: int) -> Sent:
    sends = (np.arange(n) < n - 1).astype(np.float64)
    return sends * chunks, sends


def _direct(n: int, shape: Shape | None, chunks: int) -> Sent:
    """Rank 0 to rank 1."""
    sends = (np.arange(n) == 0).astype(np.float64)
    return sends, sends


SENT: dict[str, dict[str, Callable[[int, Shape | None, int], Sent]]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "recursive_doubling": _doubling_all_reduce,
        "halving_doubling": _halving_doubling,
        "tree": _tree,
        "double_tree": _double_tree,
        "torus": _torus,
        "naive": _naive,
        "parameter_server": _parameter_server,
        "parameter_server_sharded": _ring_all_reduce,
    },
    "reduce_scatter": {"ring": _ring, "recursive_halving": _recursive_halving},
    "all_gather": {"ring": _ring, "recursive_doubling": _doubling_all_gather},
    "all_to_all": {"pairwise": _ring, "bruck": _bruck},
    "broadcast": {"binomial": _binomial, "scatter_allgather": _scatter_allgather, "chain": _chain},
    "reduce": {"binomial": _binomial_reduce},
    "send_recv": {"direct": _direct},
}
