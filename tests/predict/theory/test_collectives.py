"""Times of collectives: forms by hand, against replayed exchanges, and against links and buses that were measured."""

import math
from typing import Any

import numpy as np
import pytest

from benchsuite.predict.theory import collectives
from benchsuite.predict.theory.collectives import (
    FORMS,
    busbw_factor,
    hierarchical_time_s,
    shared_medium_time_s,
    terms,
    time_s,
)
from benchsuite.probe.comm.step_tables import STEP_TABLES, table
from tests.helpers import traffic
from tests.predict.published_tables import all_rows

ALL = [(op, algorithm) for op, of in FORMS.items() for algorithm in of]
POWERS = (2, 4, 8, 16, 64)
D, ALPHA, BETA, GAMMA = 1e6, 1e-3, 1e-8, 1e-9
"""An array of 1 MB takes 10 ms on a link and 1 ms to add up; a message costs 1 ms."""
BY_HAND = [
    # 8 ranks: messages, arrays on a link, arrays added up
    ("all_reduce", "ring", 14, 14 / 8, 7 / 8),
    ("all_reduce", "recursive_doubling", 3, 3, 3),
    ("all_reduce", "halving_doubling", 6, 14 / 8, 7 / 8),
    ("all_reduce", "tree", 6, 6, 3),
    ("all_reduce", "double_tree", 6, 2, 1),
    ("all_reduce", "torus", 8, 14 / 8, 7 / 8),
    ("all_reduce", "naive", 7, 7, 7),
    ("all_reduce", "parameter_server", 14, 14, 7),
    ("all_reduce", "parameter_server_sharded", 14, 14 / 8, 7 / 8),
    ("reduce_scatter", "ring", 7, 7 / 8, 7 / 8),
    ("reduce_scatter", "recursive_halving", 3, 7 / 8, 7 / 8),
    ("all_gather", "ring", 7, 7 / 8, 0),
    ("all_gather", "recursive_doubling", 3, 7 / 8, 0),
    ("all_to_all", "pairwise", 7, 7 / 8, 0),
    ("all_to_all", "bruck", 3, 3 / 2, 0),
    ("broadcast", "binomial", 3, 3, 0),
    ("broadcast", "scatter_allgather", 10, 14 / 8, 0),
    ("broadcast", "chain", 7, 7, 0),
    ("reduce", "binomial", 3, 3, 3),
    ("send_recv", "direct", 1, 1, 0),
]
BY_HAND_OF_6 = [
    # two ranks fold into the four others and get the result: 2 more messages of the whole
    ("all_reduce", "ring", 10, 10 / 6, 5 / 6),
    ("all_reduce", "recursive_doubling", 4, 4, 3),
    ("all_reduce", "halving_doubling", 6, 6 / 4 + 2, 3 / 4 + 1),
    ("reduce_scatter", "recursive_halving", 4, 1 + (4 + 2) / 6 + 1 / 6, 1 + (4 + 2) / 6),
    ("all_gather", "recursive_doubling", 4, 1 / 6 + (2 + 4) / 6 + 1, 0),
    ("all_reduce", "tree", 6, 6, 3),
    ("all_reduce", "torus", 6, 10 / 6, 5 / 6),
    ("all_to_all", "bruck", 3, 7 / 6, 0),
    ("broadcast", "binomial", 3, 3, 0),
]
SHAPED_LINKS = [
    # ranks, bytes, op, ms
    (2, 1048576, "all_reduce", 41.8),
    (2, 4194304, "all_reduce", 175.1),
    (4, 1048576, "all_reduce", 65.1),
    (4, 4194304, "all_reduce", 263.1),
    (4, 1048576, "all_gather", 32.5),
    (4, 4194304, "all_gather", 131.4),
    (2, 1048576, "broadcast", 43.6),
    (2, 4194304, "broadcast", 175.0),
]
"""gloo of torch 2.13, one network namespace a rank, each rank's egress limited to 200 Mbit/s; median of 5."""
SHARED_BUS = [(2, 262144, 5.1), (2, 1048576, 20.7), (2, 4194304, 83.4), (4, 1048576, 62.8), (4, 4194304, 250.9)]
"""Ranks, bytes, ms of an all_reduce: the same with all ranks on one interface of 800 Mbit/s."""
NCCL = [
    # ranks, bytes, us, GB/s busbw: all_reduce of fp32 by nccl-tests on A100 and V100 (VIA-Research/vTrain, trace/)
    (2, 1048576, 44.21, 23.72),
    (2, 100663296, 572.0, 175.98),
    (4, 6291456, 104.1, 90.66),
    (4, 402653184, 2820.7, 214.12),
    (6, 25165824, 270.2, 155.2),
    (2, 100663296, 4484.7, 22.45),
    (4, 402653184, 7074.2, 85.38),
]


class TestForms:
    @pytest.mark.parametrize(("op", "algorithm", "messages", "wire", "reduced"), BY_HAND)
    def test_of_8_ranks(self, op: str, algorithm: str, messages: float, wire: float, reduced: float) -> None:
        found = terms(op, algorithm, 8)
        assert (found.latency, found.wire, found.reduced) == pytest.approx((messages, wire, reduced))
        seconds = time_s(op, algorithm, 8, D, ALPHA, BETA, GAMMA)
        assert seconds == pytest.approx(messages * 1e-3 + wire * 10e-3 + reduced * 1e-3)

    def test_none_is_left_out(self) -> None:
        assert {row[:2] for row in BY_HAND} == set(ALL)
        assert {op: set(of) for op, of in FORMS.items()} == {op: set(of) for op, of in traffic.SENT.items()}

    @pytest.mark.parametrize(("op", "algorithm", "messages", "wire", "reduced"), BY_HAND_OF_6)
    def test_of_6_ranks(self, op: str, algorithm: str, messages: float, wire: float, reduced: float) -> None:
        found = terms(op, algorithm, 6)
        assert (found.latency, found.wire, found.reduced) == pytest.approx((messages, wire, reduced))

    @pytest.mark.parametrize(("op", "algorithm"), ALL)
    def test_one_rank_costs_nothing(self, op: str, algorithm: str) -> None:
        assert time_s(op, algorithm, 1, D, ALPHA, BETA, GAMMA) == 0
        assert time_s(op, algorithm, [1, 2], D, ALPHA, BETA, GAMMA)[1] > 0

    @pytest.mark.parametrize(("op", "algorithm"), ALL)
    def test_arrays_are_the_same_as_scalars(self, op: str, algorithm: str) -> None:
        ranks, sizes = np.array([1, 2, 3, 6, 8, 13]), np.array([[0.0], [1e3], [1e9]])
        found = time_s(op, algorithm, num_ranks=ranks, num_bytes=sizes, alpha_s=ALPHA, beta_s_per_byte=BETA)
        assert found.shape == (3, 6) and found.dtype == np.float64
        each = [[float(time_s(op, algorithm, n, d, ALPHA, BETA)) for n in ranks] for d in sizes[:, 0]]
        assert found.tolist() == each

    def test_ring_moves_the_least_and_doubling_has_the_fewest_messages(self) -> None:
        small = {of: time_s("all_reduce", of, 64, 8, ALPHA, BETA) for of in FORMS["all_reduce"]}
        large = {of: time_s("all_reduce", of, 64, 1e9, ALPHA, BETA) for of in FORMS["all_reduce"]}
        assert min(small, key=lambda of: small[of]) == "recursive_doubling"
        assert min(large, key=lambda of: large[of]) == "halving_doubling"
        assert large["parameter_server_sharded"] == large["ring"]
        assert large["ring"] < large["double_tree"] < large["recursive_doubling"]

    def test_torus(self) -> None:
        """(X-1)/X + (Y-1)/(XY) = (N-1)/N, whatever the shape; one row is a ring."""
        for shape in ((2, 4), (4, 2), (8, 1)):
            found = terms("all_reduce", "torus", 8, shape)
            x, y = shape
            assert found.latency == 2 * (x + y - 2)
            assert found.wire == pytest.approx(2 * ((x - 1) / x + (y - 1) / (x * y)))
        ring, row = terms("all_reduce", "ring", 7), terms("all_reduce", "torus", 7)
        assert (row.latency, row.wire) == (ring.latency, ring.wire)

    def test_chain_in_chunks(self) -> None:
        """3 hops, 5 chunks of 2 ms and 1 ms each: the last chunk arrives after 7 of them."""
        assert time_s("broadcast", "chain", 4, D, ALPHA, BETA, chunks=5) == pytest.approx(7 * (1e-3 + 2e-3))

    def test_best_chunks_are_best(self) -> None:
        best = float(collectives.best_chunks(16, 1e8, ALPHA, BETA))
        times = {c: float(time_s("broadcast", "chain", 16, 1e8, ALPHA, BETA, chunks=c)) for c in range(1, 400)}
        assert min(times, key=lambda c: times[c]) == best == round(math.sqrt(14 * 1e8 * BETA / ALPHA))
        assert collectives.best_chunks([1, 2, 3], 1e8, ALPHA, BETA).tolist() == [1, 1, 32]
        assert collectives.best_chunks(2, 1e8, 0, BETA) == 1

    @pytest.mark.parametrize(
        ("op", "algorithm", "given", "line"),
        [
            ("allreduce", "ring", {}, "op 'allreduce' is unknown; nearest: all_reduce; allowed: all_reduce, .*"),
            ("all_reduce", "rings", {}, "algorithm of all_reduce 'rings' is unknown; nearest: ring; allowed: ring, .*"),
            ("all_reduce", "ring", {"num_ranks": 0}, "num_ranks 0 is not allowed; allowed: a whole number, 1 or above"),
            ("all_reduce", "ring", {"num_ranks": [4, 2.5]}, "num_ranks 2.5 is not allowed"),
            ("all_reduce", "ring", {"num_bytes": -1}, "num_bytes -1 is not allowed; allowed: a finite number, 0 or"),
            ("all_reduce", "ring", {"alpha_s": -1}, "alpha_s -1 is not allowed"),
            ("all_reduce", "ring", {"beta_s_per_byte": math.inf}, "beta_s_per_byte inf is not allowed"),
            ("all_reduce", "torus", {"shape": (3, 2)}, "shape 3 x 2 = 6 ranks; allowed: X x Y = 8"),
            ("broadcast", "chain", {"chunks": 0}, "chunks 0 is not allowed"),
        ],
    )
    def test_refuses(self, op: str, algorithm: str, given: dict[str, Any], line: str) -> None:
        legal: dict[str, Any] = {"num_ranks": 8, "num_bytes": D, "alpha_s": ALPHA, "beta_s_per_byte": BETA}
        with pytest.raises(ValueError, match=line):
            time_s(op, algorithm, **legal | given)


class TestAgainstTraffic:
    """What each rank sends, counted another way, bounds the time from below and meets it where all do the same."""

    SYMMETRIC = (
        ("all_reduce", "ring"), ("all_reduce", "recursive_doubling"), ("all_reduce", "halving_doubling"),
        ("all_reduce", "torus"), ("all_reduce", "naive"), ("all_reduce", "parameter_server_sharded"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "recursive_halving"), ("all_gather", "ring"), ("all_gather", "recursive_doubling"),
        ("all_to_all", "pairwise"), ("all_to_all", "bruck"),
    )  # fmt: skip

    @pytest.mark.parametrize(("op", "algorithm"), SYMMETRIC)
    @pytest.mark.parametrize("n", POWERS)
    def test_every_rank_sends_what_the_form_says(self, op: str, algorithm: str, n: int) -> None:
        found = terms(op, algorithm, n)
        assert traffic.messages(op, algorithm, n).tolist() == [found.latency] * n
        assert traffic.sent_bytes_per_rank(op, algorithm, n, D) == pytest.approx([float(found.wire) * D] * n)

    @pytest.mark.parametrize(("op", "algorithm"), ALL)
    @pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8, 12, 16])
    def test_nobody_sends_for_longer_than_it_takes(self, op: str, algorithm: str, n: int) -> None:
        found, busiest = terms(op, algorithm, n), traffic.sent_bytes_per_rank(op, algorithm, n, 1).max()
        assert busiest <= float(found.wire) + 1e-12
        assert traffic.messages(op, algorithm, n).max() <= found.latency
        if (op, algorithm) == ("all_gather", "recursive_doubling"):
            assert busiest == pytest.approx(float(found.wire) - (n & (n - 1) > 0) / n)  # hosts wait for a guest's block


def replayed_s(op: str, algorithm: str, n: int, size: float) -> float:
    """Seconds of a step table: messages wait for both ends, and pass each rank's two ports one after the other."""
    found = table(op, algorithm, n)
    steps = [[step for phase in found.phases for step in phase.steps[rank]] for rank in range(n)]
    at, out, into = [0] * n, [0.0] * n, [0.0] * n
    begun, sent, received = [0.0] * n, [set[int]() for _ in range(n)], [set[int]() for _ in range(n)]
    while any(at[rank] < len(steps[rank]) for rank in range(n)):
        for rank in [rank for rank in range(n) if at[rank] < len(steps[rank])]:
            for send in steps[rank][at[rank]].sends:
                other = send.peer
                if send.peer in sent[rank] or at[other] == len(steps[other]) or rank in received[other]:
                    continue
                receives = [one for one in steps[other][at[other]].receives if one.peer == rank]
                if receives:
                    part = (send.chunks[1] - send.chunks[0]) / found.num_chunks * size
                    end = max(out[rank], into[other], begun[rank], begun[other]) + ALPHA + part * BETA
                    out[rank], into[other] = end, end + part * GAMMA * receives[0].adds
                    sent[rank].add(other)
                    received[other].add(rank)
        for rank in [rank for rank in range(n) if at[rank] < len(steps[rank])]:
            step = steps[rank][at[rank]]
            if len(sent[rank]) == len(step.sends) and len(received[rank]) == len(step.receives):
                begun[rank] = max(begun[rank], out[rank], into[rank])
                at[rank], sent[rank], received[rank] = at[rank] + 1, set(), set()
    return max(begun)


class TestAgainstReplay:
    @pytest.mark.parametrize(("op", "algorithm"), [(op, one) for op, of in STEP_TABLES.items() for one in of])
    @pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
    def test_time_of_a_step_table(self, op: str, algorithm: str, n: int) -> None:
        found, form = replayed_s(op, algorithm, n, D), float(time_s(op, algorithm, n, D, ALPHA, BETA, GAMMA))
        if algorithm == "parameter_server_sharded":  # the form has no two messages meet at a port; here they queue
            assert form <= found <= 2 * form
        else:
            assert found == pytest.approx(form, rel=1e-9)

    @pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "halving_doubling", "torus"])
    @pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
    def test_not_a_power_of_two(self, algorithm: str, n: int) -> None:
        found = replayed_s("all_reduce", algorithm, n, D)
        assert found == pytest.approx(float(time_s("all_reduce", algorithm, n, D, ALPHA, BETA, GAMMA)), rel=1e-9)


class TestMeasured:
    @pytest.mark.parametrize(("n", "size", "op", "ms"), SHAPED_LINKS)
    def test_shaped_links(self, n: int, size: int, op: str, ms: float) -> None:
        """Within 4.5 %, with no latency and 25 MB/s out of each rank."""
        algorithm = "binomial" if op == "broadcast" else "ring"
        assert time_s(op, algorithm, n, size, 0, 8 / 200e6) * 1e3 == pytest.approx(ms, rel=0.045)

    @pytest.mark.parametrize(("n", "size", "ms"), SHARED_BUS)
    def test_shared_bus(self, n: int, size: int, ms: float) -> None:
        """Within 3 %, with no latency: 2(N-1) arrays pass one interface."""
        found = shared_medium_time_s("all_reduce", "ring", n, size, 8 / 800e6)
        assert found * 1e3 == pytest.approx(ms, rel=0.03)
        assert found == pytest.approx(2 * (n - 1) * size * 8 / 800e6)

    def test_all_rows(self) -> None:
        for row in all_rows("gloo_shaped_links"):
            self.test_shaped_links(row["N"], row["bytes"], row["op"], row["ms"])
        for row in all_rows("gloo_shared_bus"):
            self.test_shared_bus(row["N"], row["bytes"], row["all_reduce_ms"])

    @pytest.mark.parametrize(("n", "size", "us", "busbw"), NCCL)
    def test_busbw_of_nccl_tests(self, n: int, size: int, us: float, busbw: float) -> None:
        assert size / us / 1e3 * busbw_factor("all_reduce", n) == pytest.approx(busbw, rel=3e-4)

    def test_busbw_all_rows(self) -> None:
        for row in all_rows("nccl_allreduce_lut"):
            found = row["bytes"] / row["out_of_place_us"] / 1e3 * busbw_factor("all_reduce", row["ranks"])
            assert found == pytest.approx(row["busbw_GB_s"], rel=2e-3)
        for row in all_rows("allreduce_4node"):
            found = row["algbw_GB_s"] * busbw_factor("all_reduce", 32)
            assert found == pytest.approx(row["busbw_GB_s"], abs=0.02)


class TestBusBandwidth:
    def test_factors(self) -> None:
        """nccl-tests' PERFORMANCE.md, of 4 ranks."""
        found = {op: float(busbw_factor(op, 4)) for op in collectives.BUSBW}
        assert found == {
            "all_reduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75, "gather": 0.75,
            "scatter": 0.75, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "hypercube": 1.0,
        }  # fmt: skip

    def test_ratio_tells_how_many_ranks(self) -> None:
        """stas00/ml-engineering's four nodes: busbw / algbw = 1.9375, so 32 ranks."""
        assert busbw_factor("all_reduce", 32) == 1.9375
        assert busbw_factor("all_reduce", [1, 2, 8]).tolist() == [0, 1, 1.75]

    @pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
    def test_is_the_link_s_own_where_rings_are_ideal(self, op: str) -> None:
        """That is what busbw is for: 1 / beta at any number of ranks."""
        algorithm = "pairwise" if op == "all_to_all" else "ring"
        n = np.array([2, 4, 8, 512])
        assert D / time_s(op, algorithm, n, D, 0, BETA) * busbw_factor(op, n) == pytest.approx([1 / BETA] * 4)

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match=r"op 'allgather' is unknown; nearest: all_gather; allowed: .*"):
            busbw_factor("allgather", 4)


class TestHierarchies:
    def test_by_hand(self) -> None:
        """4 nodes of 8: 14 messages inside with 14/8 arrays, 6 between with 6/4 of an eighth."""
        found = hierarchical_time_s(4, 8, D, 1e-5, 1e-9, 1e-4, 1e-8)
        assert found == pytest.approx(14e-5 + 14 / 8 * 1e-3 + 6e-4 + 6 / 4 / 8 * 1e-2)

    def test_half_of_it_gathers_or_scatters(self) -> None:
        given = (4, 8, D, 1e-5, 1e-9, 1e-4, 1e-8)
        halves = [hierarchical_time_s(*given, op=op) for op in ("reduce_scatter", "all_gather")]
        assert halves == pytest.approx([float(hierarchical_time_s(*given)) / 2] * 2)
        with pytest.raises(
            ValueError, match="op 'broadcast' is unknown; allowed: all_reduce, reduce_scatter, all_gath"
        ):
            hierarchical_time_s(*given, op="broadcast")

    def test_one_node_or_one_rank_a_node_is_a_ring(self) -> None:
        ring = time_s("all_reduce", "ring", 8, D, ALPHA, BETA)
        assert hierarchical_time_s(1, 8, D, ALPHA, BETA, 1, 1) == ring
        assert hierarchical_time_s(8, 1, D, 1, 1, ALPHA, BETA) == ring

    def test_like_links_make_a_torus(self) -> None:
        found = hierarchical_time_s([2, 4], [4, 2], D, ALPHA, BETA, ALPHA, BETA)
        torus = [time_s("all_reduce", "torus", 8, D, ALPHA, BETA, shape=shape) for shape in ((4, 2), (2, 4))]
        assert found == pytest.approx(torus)

    @pytest.mark.parametrize(
        ("op", "algorithm", "arrays"),
        [
            ("all_reduce", "ring", 6),
            ("all_reduce", "naive", 12),
            ("all_reduce", "parameter_server", 6),
            ("all_gather", "ring", 3),
            ("broadcast", "binomial", 3),
        ],
    )
    def test_shared_medium_carries_everything(self, op: str, algorithm: str, arrays: float) -> None:
        """4 ranks: naive K(K-1), a parameter server 2(K-1), a broadcast K-1 arrays."""
        assert shared_medium_time_s(op, algorithm, 4, D, BETA) == pytest.approx(arrays * D * BETA)

    @pytest.mark.parametrize(("op", "algorithm"), [(op, name) for op, of in traffic.SENT.items() for name in of])
    def test_shared_medium_carries_what_all_ranks_send(self, op: str, algorithm: str) -> None:
        ranks = range(1, 40)
        sent = [traffic.sent_bytes_per_rank(op, algorithm, n, D).sum() for n in ranks]
        assert shared_medium_time_s(op, algorithm, [*ranks], D, BETA) == pytest.approx([BETA * each for each in sent])

    def test_shared_medium_of_arrays(self) -> None:
        found = shared_medium_time_s("all_reduce", "ring", [1, 2, 4], [[D], [2 * D]], BETA, ALPHA)
        assert found[0] == pytest.approx([0, 2 * ALPHA + 2 * D * BETA, 6 * ALPHA + 6 * D * BETA])
        assert found.shape == (2, 3)
