"""Counts of messages and bytes against exchanges that are carried out here, block by block."""

from collections import Counter
from collections.abc import Iterator

import pytest

from benchsuite.predict.theory.collectives import torus_shape
from tests.helpers.traffic import SENT, messages, sent_bytes_per_rank

RANKS = range(2, 18)
Sent = Iterator[tuple[int, int, set[int]]]
"""Sender, receiver, blocks."""


def counted(n: int, sent: Sent) -> tuple[list[int], list[float]]:
    """Messages and blocks that each rank sends."""
    number, blocks = Counter[int](), Counter[int]()
    for sender, receiver, what in sent:
        assert sender != receiver
        number[sender] += 1
        blocks[sender] += len(what)
    return [number[rank] for rank in range(n)], [blocks[rank] for rank in range(n)]


def assert_theory(op: str, algorithm: str, n: int, sent: Sent) -> None:
    number, blocks = counted(n, sent)
    assert messages(op, algorithm, n).tolist() == number
    assert sent_bytes_per_rank(op, algorithm, n, 7 * n) == pytest.approx([7 * b for b in blocks])


def recursive_halving(n: int) -> Sent:
    """Reduce_scatter in which guests are folded in first and sent their block last."""
    power = 1 << (n.bit_length() - 1)
    everything = set(range(n))
    for guest in range(power, n):
        yield guest, guest - power, everything
    mine = {rank: set(everything) for rank in range(power)}
    distance = power // 2
    while distance:
        for rank in range(power):
            theirs = {block for block in mine[rank] if (block % power) & distance != rank & distance}
            yield rank, rank ^ distance, theirs
        for rank in range(power):
            mine[rank] = {block for block in mine[rank] if (block % power) & distance == rank & distance}
        distance //= 2
    for rank in range(power):
        assert mine[rank] == {rank} | ({rank + power} if rank + power < n else set())
    for guest in range(power, n):
        yield guest - power, guest, {guest}


def recursive_doubling(n: int) -> Sent:
    """All_gather in which guests hand in their block first and are sent everything last."""
    power = 1 << (n.bit_length() - 1)
    mine = {rank: {rank} for rank in range(power)}
    for guest in range(power, n):
        yield guest, guest - power, {guest}
        mine[guest - power].add(guest)
    distance = 1
    while distance < power:
        for rank in range(power):
            yield rank, rank ^ distance, set(mine[rank])
        mine = {rank: mine[rank] | mine[rank ^ distance] for rank in range(power)}
        distance *= 2
    for guest in range(power, n):
        assert mine[guest - power] == set(range(n))
        yield guest - power, guest, mine[guest - power]


def bruck(n: int) -> Sent:
    """All_to_all: a block travels by the bits of its distance; blocks are named by source and target."""
    at = {(source, target): source for source in range(n) for target in range(n)}
    for bit in range((n - 1).bit_length()):
        moving: dict[int, set[int]] = {rank: set() for rank in range(n)}
        for (source, target), place in list(at.items()):
            if (target - source) % n >> bit & 1:
                moving[place].add(source * n + target)
                at[source, target] = (place + (1 << bit)) % n
        for rank, blocks in moving.items():
            yield rank, (rank + (1 << bit)) % n, blocks
    assert all(place == target for (_, target), place in at.items())


def binomial(n: int) -> Sent:
    """Broadcast from 0: those that have it send it on at half the distance each time; one block is the whole."""
    has, distance = {0}, 1 << (n - 1).bit_length()
    while distance > 1:
        distance //= 2
        for rank in sorted(has):
            if rank + distance < n:
                yield rank, rank + distance, set(range(n))
                has.add(rank + distance)
    assert has == set(range(n))


def scatter_allgather(n: int) -> Sent:
    """Broadcast: a binomial scatter, then a ring."""
    holds, distance = {0: set(range(n))}, 1 << (n - 1).bit_length()
    while distance > 1:
        distance //= 2
        for rank in sorted(holds):
            upper = {block for block in holds[rank] if block >= rank + distance}
            if upper:
                yield rank, rank + distance, upper
                holds[rank] -= upper
                holds[rank + distance] = upper
    assert holds == {rank: {rank} for rank in range(n)}
    for step in range(n - 1):
        for rank in range(n):
            yield rank, (rank + 1) % n, {(rank - step) % n}


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize(
    ("op", "algorithm", "communication"),
    [
        ("reduce_scatter", "recursive_halving", recursive_halving),
        ("all_gather", "recursive_doubling", recursive_doubling),
        ("all_to_all", "bruck", bruck),
        ("broadcast", "binomial", binomial),
        ("broadcast", "scatter_allgather", scatter_allgather),
    ],
)
def test_is_what_is_sent(op: str, algorithm: str, exchange: object, n: int) -> None:
    assert_theory(op, algorithm, n, exchange(n))  # type: ignore[operator]


ONE_RANK_SENDS_ARRAYS = [
    # 8 ranks: of the whole group together, in arrays (POSTECH's table: total bytes on the network)
    ("all_reduce", "ring", 14),
    ("all_reduce", "recursive_doubling", 24),
    ("all_reduce", "halving_doubling", 14),
    ("all_reduce", "tree", 14),
    ("all_reduce", "double_tree", 14),
    ("all_reduce", "torus", 14),
    ("all_reduce", "naive", 56),
    ("all_reduce", "parameter_server", 14),
    ("all_reduce", "parameter_server_sharded", 14),
    ("reduce", "binomial", 7),
    ("broadcast", "chain", 7),
    ("send_recv", "direct", 1),
]


@pytest.mark.parametrize(("op", "algorithm", "arrays"), ONE_RANK_SENDS_ARRAYS)
def test_total_of_8_ranks(op: str, algorithm: str, arrays: float) -> None:
    assert sent_bytes_per_rank(op, algorithm, 8, 1e6).sum() == pytest.approx(arrays * 1e6)


def test_rank_by_rank() -> None:
    """A tree of 6: 0 has children 1, 2, 4; 2 has 3; 4 has 5. Each but the root sends once up, each parent down."""
    assert messages("all_reduce", "tree", 6).tolist() == [3, 1, 2, 1, 2, 1]
    assert messages("all_reduce", "parameter_server", 4).tolist() == [3, 1, 1, 1]
    assert messages("broadcast", "chain", 4, chunks=5).tolist() == [5, 5, 5, 0]
    assert sent_bytes_per_rank("broadcast", "chain", 4, 100, chunks=5).tolist() == [100, 100, 100, 0]
    assert messages("all_reduce", "recursive_doubling", 6).tolist() == [3, 3, 2, 2, 1, 1]
    assert messages("all_reduce", "halving_doubling", 6).tolist() == [5, 5, 4, 4, 1, 1]
    assert sent_bytes_per_rank("all_reduce", "halving_doubling", 6, 100).tolist() == [250, 250, 150, 150, 100, 100]
    assert messages("all_reduce", "torus", 6, shape=(3, 2)).tolist() == [6] * 6
    assert messages("all_reduce", "torus", 6, shape=(6, 1)).tolist() == [10] * 6


@pytest.mark.parametrize("n", RANKS)
def test_two_trees_share_the_work(n: int) -> None:
    """Together the trees carry two arrays a rank less two; a rank is inside one of them and a leaf of the other."""
    sent = sent_bytes_per_rank("all_reduce", "double_tree", n, 1)
    assert sent.sum() == pytest.approx(2 * (n - 1)) and sent.max() <= 2
    assert messages("all_reduce", "double_tree", n).sum() == 4 * (n - 1)


@pytest.mark.parametrize(("op", "algorithm"), [(op, algorithm) for op, of in SENT.items() for algorithm in of])
def test_one_rank_sends_nothing(op: str, algorithm: str) -> None:
    assert messages(op, algorithm, 1).tolist() == [0]
    assert sent_bytes_per_rank(op, algorithm, 1, 1e6).tolist() == [0.0]


def test_squarest_torus() -> None:
    assert [torus_shape(n) for n in (4, 6, 7, 12, 16, 96)] == [(2, 2), (3, 2), (7, 1), (4, 3), (4, 4), (12, 8)]
    assert torus_shape(12, (2, 6)) == (2, 6)


def test_refuses() -> None:
    with pytest.raises(ValueError, match="shape 4 x 4 = 16 ranks; allowed: X x Y = 12"):
        messages("all_reduce", "torus", 12, shape=(4, 4))
    with pytest.raises(
        ValueError, match="algorithm of all_gather 'rings' is unknown; nearest: ring; allowed: ring, recursive_doubling"
    ):
        messages("all_gather", "rings", 4)
    with pytest.raises(ValueError, match=r"num_ranks 2\.5 is not allowed"):
        messages("all_gather", "ring", 2.5)
