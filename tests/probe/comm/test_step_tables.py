"""Step tables: replayed without a network, chunk by chunk, counted by hand, and timed against links and buses."""

import math

import numpy as np
import pytest

from bench import comm
from benchsuite.contract.errors import UserError
from benchsuite.predict.theory import collectives
from benchsuite.probe.comm.replay import Held, in_words, replay
from benchsuite.probe.comm.step_tables import STEP_TABLES, Phase, Receive, Table, table, torus_shape
from tests.helpers.published_tables import all_rows

RANKS = range(1, 10)
ALL_REDUCES = tuple(STEP_TABLES["all_reduce"])


def after_phases(found: Table) -> dict[str, Held]:
    """What ranks hold after each phase; one without messages changes nothing."""
    held = np.repeat(np.eye(found.num_ranks, dtype=int)[:, None], found.num_chunks, axis=1)
    rounds, states = dict(replay(found)), {}
    for phase in found.phases:
        states[phase.name] = held = rounds.get(phase.name, held)
    return states


def test_replay_notices_a_deadlock_and_a_wrong_sum() -> None:
    """The replay itself can fail: two ranks that both wait first, and one that adds twice."""
    from benchsuite.probe.comm.step_tables import Send, Step

    whole = (0, 1)
    wait = Step(receives=(Receive(1, whole),)), Step(sends=(Send(1, whole),))
    other = Step(receives=(Receive(0, whole),)), Step(sends=(Send(0, whole),))
    with pytest.raises(AssertionError, match="deadlock in both wait"):
        after_phases(Table("all_reduce", "x", 2, 1, (Phase("both wait", (wait, other)),)))
    twice = (Step((Send(1, whole),), (Receive(1, whole, adds=True),)),) * 2
    again = (Step((Send(0, whole),), (Receive(0, whole, adds=True),)),) * 2
    (held,) = after_phases(Table("all_reduce", "x", 2, 1, (Phase("twice", (twice, again)),))).values()
    assert held[0, 0].tolist() == [2, 2]


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_all_reduce_ends_with_every_input_once_everywhere(algorithm: str, num_ranks: int) -> None:
    found = table("all_reduce", algorithm, num_ranks)
    states = after_phases(found)
    if num_ranks == 1:
        assert states == {} and found.messages() == [0]
        return
    assert (list(states.values())[-1] == 1).all()


@pytest.mark.parametrize("num_ranks", RANKS)
def test_ring_owns_its_chunk_after_reduce_scatter(num_ranks: int) -> None:
    for op in ("all_reduce", "reduce_scatter"):
        for name, held in after_phases(table(op, "ring", num_ranks)).items():
            if name == "reduce_scatter":
                for rank in range(num_ranks):
                    assert (held[rank, rank] == 1).all(), "complete"
                    # the chunk owned by the rank before is only its own, all others are partial sums
                    sums = held[rank].sum(axis=1)
                    assert sorted(sums.tolist()) == list(range(1, num_ranks + 1))


@pytest.mark.parametrize("num_ranks", RANKS)
def test_ring_all_gather_spreads_each_ranks_own_chunk(num_ranks: int) -> None:
    for held in after_phases(table("all_gather", "ring", num_ranks)).values():
        for chunk in range(num_ranks):
            wanted = np.eye(num_ranks, dtype=int)[chunk]
            assert (held[:, chunk] == wanted).all()


@pytest.mark.parametrize("num_ranks", RANKS)
def test_recursive_doubling_after_every_phase(num_ranks: int) -> None:
    power = 1 << int(math.log2(num_ranks))
    states = after_phases(table("all_reduce", "recursive_doubling", num_ranks))
    if num_ranks == 1:
        return
    for rank in range(power):
        folded = {rank, rank + power} & set(range(num_ranks))
        assert set(np.flatnonzero(states["fold"][rank, 0])) == folded
        assert (states["doubling"][rank] == 1).all()
    for rank in range(power, num_ranks):
        assert set(np.flatnonzero(states["doubling"][rank, 0])) == {rank}, "a guest has only its own until the end"


@pytest.mark.parametrize("num_ranks", range(2, 10))
def test_halving_leaves_each_rank_one_complete_chunk(num_ranks: int) -> None:
    states = after_phases(table("all_reduce", "halving_doubling", num_ranks))
    power = 1 << int(math.log2(num_ranks))
    for rank in range(power):
        complete = [chunk for chunk in range(power) if (states["halving"][rank, chunk] == 1).all()]
        assert complete == [rank]
        assert (states["doubling"][rank] == 1).all()


@pytest.mark.parametrize("num_ranks", [4, 5, 6, 8, 9, 12])
def test_torus_after_every_phase(num_ranks: int) -> None:
    in_row, num_rows = torus_shape(num_ranks)
    states = after_phases(table("all_reduce", "torus", num_ranks))
    for rank in range(num_ranks):
        row, column = divmod(rank, in_row)
        mine = slice(column * num_rows, (column + 1) * num_rows)
        in_my_row = [int(other // in_row == row) for other in range(num_ranks)]
        assert (states["row reduce_scatter"][rank, mine] == in_my_row).all()
        assert (states["column reduce_scatter"][rank, column * num_rows + row] == 1).all()
        assert (states["column all_gather"][rank, mine] == 1).all()
        assert (states["row all_gather"][rank] == 1).all()


@pytest.mark.parametrize("num_ranks", range(2, 10))
def test_trees_and_servers_after_every_phase(num_ranks: int) -> None:
    for algorithm, name in (("tree", "reduce"), ("parameter_server", "push")):
        held = after_phases(table("all_reduce", algorithm, num_ranks))[name]
        assert (held[0] == 1).all()
    (reduced,) = after_phases(table("reduce", "binomial", num_ranks)).values()
    assert (reduced[0] == 1).all()
    (spread,) = after_phases(table("broadcast", "binomial", num_ranks)).values()
    assert (spread == np.eye(num_ranks, dtype=int)[0]).all(), "everyone has rank 0's"
    pushed = after_phases(table("all_reduce", "parameter_server_sharded", num_ranks))["push"]
    for rank in range(num_ranks):
        assert (pushed[rank, rank] == 1).all()


@pytest.mark.parametrize("num_ranks", range(2, 17))
@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_counts_are_the_theorys(algorithm: str, num_ranks: int) -> None:
    found, form = table("all_reduce", algorithm, num_ranks), collectives.traffic(algorithm, num_ranks)
    elements = 720720  # divisible by 1 to 16, so that all chunks are alike
    sent = found.sent_elements(elements)
    assert (sum(found.messages()), found.num_steps(), found.peak_messages()) == (form.messages, form.steps, form.peak)
    assert (sum(sent) / elements, max(sent) / elements) == pytest.approx((form.total, form.busiest))
    received = [0] * num_ranks
    for rank in range(num_ranks):
        for step in found.of_rank(rank):
            for send in step.sends:
                received[send.peer] += 1
    assert received == [sum(len(step.receives) for step in found.of_rank(rank)) for rank in range(num_ranks)]


def test_traffic_of_8_ranks_by_hand() -> None:
    """Steps, peak, messages, arrays of the busiest rank and of all: a server has O(1) steps, O(N) messages at once."""
    by_hand = {
        "ring": (14, 1, 112, 1.75, 14),
        "recursive_doubling": (3, 1, 24, 3, 24),
        "halving_doubling": (6, 1, 48, 1.75, 14),
        "torus": (8, 1, 64, 1.75, 14),
        "tree": (6, 1, 14, 3, 14),
        "parameter_server": (2, 7, 14, 7, 14),
        "parameter_server_sharded": (2, 7, 112, 1.75, 14),
        "all_to_all": (1, 7, 56, 7, 56),
    }
    assert set(by_hand) == set(ALL_REDUCES) == set(collectives.TRAFFIC)
    for name, wanted in by_hand.items():
        form = collectives.traffic(name, 8)
        assert (form.steps, form.peak, form.messages, form.busiest, form.total) == wanted
    with pytest.raises(UserError, match="algorithm 'rings' is unknown; nearest: ring"):
        collectives.traffic("rings", 8)


def test_a_ring_in_words() -> None:
    """Three ranks: sums grow by one input a round, then whole ones are passed on."""
    assert (
        in_words(table("all_reduce", "ring", 3))
        == """\
                rank a       rank b       rank c
at the start    a a a        b b b        c c c
reduce_scatter  a ac a       b b ab       bc c c
reduce_scatter  abc ac a     b abc ab     bc c abc
all_gather      abc ac abc   abc abc ab   bc abc abc
all_gather      abc abc abc  abc abc abc  abc abc abc"""
    )


ARRAYS_OF_8_RANKS = [
    # of the whole group together, in arrays (POSTECH's table: total bytes on the network)
    ("all_reduce", "ring", 14),
    ("all_reduce", "recursive_doubling", 24),
    ("all_reduce", "halving_doubling", 14),
    ("all_reduce", "tree", 14),
    ("all_reduce", "torus", 14),
    ("all_reduce", "parameter_server", 14),
    ("all_reduce", "parameter_server_sharded", 14),
    ("all_reduce", "all_to_all", 56),
    ("reduce_scatter", "ring", 7),
    ("all_gather", "ring", 7),
    ("broadcast", "binomial", 7),
    ("reduce", "binomial", 7),
]


@pytest.mark.parametrize(("op", "algorithm", "arrays"), ARRAYS_OF_8_RANKS)
def test_total_of_8_ranks(op: str, algorithm: str, arrays: float) -> None:
    assert sum(table(op, algorithm, 8).sent_elements(800)) == arrays * 800


def test_rank_by_rank() -> None:
    """A tree of 6: 0 has children 1, 2, 4; 2 has 3; 4 has 5. Each but the root sends once up, each parent down."""
    assert table("all_reduce", "tree", 6).messages() == [3, 1, 2, 1, 2, 1]
    assert table("all_reduce", "parameter_server", 4).messages() == [3, 1, 1, 1]
    assert table("all_reduce", "recursive_doubling", 6).messages() == [3, 3, 2, 2, 1, 1]
    assert table("all_reduce", "halving_doubling", 6).messages() == [5, 5, 4, 4, 1, 1]
    assert table("all_reduce", "halving_doubling", 6).sent_elements(100) == [250, 250, 150, 150, 100, 100]
    assert table("all_reduce", "torus", 6).messages() == [6] * 6
    assert table("all_reduce", "torus", 5).messages() == [8] * 5


def test_squarest_torus() -> None:
    assert [torus_shape(n) for n in (4, 6, 7, 12, 16, 96)] == [(2, 2), (3, 2), (7, 1), (4, 3), (4, 4), (12, 8)]


TIMES_BY_HAND = [
    # ranks, op, algorithm: messages one after the other, arrays on the busiest link, arrays added up
    (8, "all_reduce", "ring", 14, 14 / 8, 7 / 8),
    (8, "all_reduce", "recursive_doubling", 3, 3, 3),
    (8, "all_reduce", "halving_doubling", 6, 14 / 8, 7 / 8),
    (8, "all_reduce", "tree", 6, 6, 3),
    (8, "all_reduce", "torus", 8, 14 / 8, 7 / 8),
    (8, "all_reduce", "parameter_server", 14, 14, 7),
    (8, "reduce_scatter", "ring", 7, 7 / 8, 7 / 8),
    (8, "all_gather", "ring", 7, 7 / 8, 0),
    (8, "broadcast", "binomial", 3, 3, 0),
    (8, "reduce", "binomial", 3, 3, 3),
    # two ranks fold into the four others and get the result: 2 more messages of the whole
    (6, "all_reduce", "ring", 10, 10 / 6, 5 / 6),
    (6, "all_reduce", "recursive_doubling", 4, 4, 3),
    (6, "all_reduce", "halving_doubling", 6, 6 / 4 + 2, 3 / 4 + 1),
    (6, "all_reduce", "tree", 6, 6, 3),
    (6, "all_reduce", "torus", 6, 10 / 6, 5 / 6),
    (6, "broadcast", "binomial", 3, 3, 0),
]


@pytest.mark.parametrize(("num_ranks", "op", "algorithm", "messages", "wire", "reduced"), TIMES_BY_HAND)
def test_time(num_ranks: int, op: str, algorithm: str, messages: float, wire: float, reduced: float) -> None:
    found = table(op, algorithm, num_ranks)
    each = [comm.time_s(found, 1.0, *one) for one in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))]
    assert each == pytest.approx([messages, wire, reduced])
    together_s = messages * 1e-3 + wire * 10e-3 + reduced * 1e-3
    assert comm.time_s(found, 1e6, 1e-3, 1e-8, 1e-9) == pytest.approx(together_s)


@pytest.mark.parametrize("num_ranks", range(1, 17))
def test_a_ring_takes_what_its_closed_form_says(num_ranks: int) -> None:
    for op in ("all_reduce", "reduce_scatter", "all_gather"):
        form = float(collectives.time_s(op, num_ranks, 1e6, 1e-3, 1e-8, 1e-9))
        assert comm.time_s(table(op, "ring", num_ranks), 1e6, 1e-3, 1e-8, 1e-9) == pytest.approx(form)
        sent = table(op, "ring", num_ranks).sent_elements(num_ranks * 5)
        assert sent == pytest.approx([float(collectives.terms(op, num_ranks).wire) * num_ranks * 5] * num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_sharded_servers_queue(num_ranks: int) -> None:
    """In an order in which no two messages meet at a port it would take as long as a ring."""
    given = (1e6, 1e-3, 1e-8, 1e-9)
    ring, served = (
        comm.time_s(table("all_reduce", name, num_ranks), *given) for name in ("ring", "parameter_server_sharded")
    )
    assert ring <= served * (1 + 1e-9) and served <= 2 * ring


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 6, 7, 8, 12])
def test_nobody_sends_for_longer_than_it_takes(num_ranks: int) -> None:
    for op, algorithms in STEP_TABLES.items():
        for found in (table(op, algorithm, num_ranks) for algorithm in algorithms):
            assert max(found.messages()) <= comm.time_s(found, 1.0, 1.0, 0.0)
            assert max(found.sent_elements(840)) <= comm.time_s(found, 840.0, 0.0, 1.0) + 1e-9


SHARED_BUS = [(2, 262144, 5.1), (2, 1048576, 20.7), (2, 4194304, 83.4), (4, 1048576, 62.8), (4, 4194304, 250.9)]
"""Ranks, bytes, ms of an all_reduce: all ranks on one interface of 800 Mbit/s, gloo of torch 2.13; median of 5."""


def test_shared_bus() -> None:
    """Within 3 %, with no latency: all that the ranks send passes one interface."""
    published = [(row["N"], row["bytes"], row["all_reduce_ms"]) for row in all_rows("gloo_shared_bus")]
    for num_ranks, size, milliseconds in (*SHARED_BUS, *published):
        sent = sum(table("all_reduce", "ring", num_ranks).sent_elements(size))
        assert sent * 8 / 800e6 * 1e3 == pytest.approx(milliseconds, rel=0.03)


def test_chunks_that_do_not_divide_the_array() -> None:
    found = table("all_reduce", "ring", 4)
    assert found.bounds(10) == [0, 3, 6, 8, 10]
    assert sum(found.sent_elements(10)) == 2 * 3 * 10, "every element travels 2(N-1) times however chunks are cut"
    assert found.bounds(2) == [0, 1, 2, 2, 2]
    assert sum(found.messages(2)) == 2 * 3 * 2, "empty chunks are not sent"


def test_what_is_copied_is_not_sent_in_the_same_step() -> None:
    """So that copies may be received in place."""
    for op, algorithms in STEP_TABLES.items():
        for algorithm in algorithms:
            for num_ranks in RANKS:
                found = table(op, algorithm, num_ranks)
                for rank in range(num_ranks):
                    for step in found.of_rank(rank):
                        sent = {chunk for one in step.sends for chunk in range(*one.chunks)}
                        copied = [chunk for one in step.receives if not one.adds for chunk in range(*one.chunks)]
                        assert not sent & set(copied) and len(copied) == len(set(copied)), (op, algorithm, num_ranks)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduce", "rings", 4), "algorithm of all_reduce 'rings' is unknown; nearest: ring; allowed: ring, .*"),
        (
            ("all_to_all", "ring", 4),
            "op of a step table 'all_to_all' is unknown; nearest: all_gather; allowed: ",
        ),
        (("all_reduce", "ring", 0), "num_ranks 0: allowed: 1 and above"),
    ],
)
def test_mistakes(arguments: tuple, words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError, match=words):
        table(*arguments)


def test_goals_of_collectives_name_each_step_table(capsys: pytest.CaptureFixture[str]):
    times = {"backend": 1.02, "ring": 1.05, "tree": 1.3}
    held = [comm.Held(4, "all_reduce", name, 1 << 20, s, 1.0) for name, s in times.items()]
    comm.show_gaps(held)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "gloo's own against its wire: median 2.0%, worst 2.0%",
        "goal: gloo's own: median <= 10%: met",
        "ring against its wire: median 5.0%, worst 5.0%",
        "goal: ring: median <= 10%: met",
        "tree against its wire: median 30.0%, worst 30.0%",
        "goal: tree: median <= 10%: MISSED",
    ]
