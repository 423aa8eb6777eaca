"""Times of rings: forms by hand, and against links that were measured."""

import math
from typing import Any

import numpy as np
import pytest

from bench import comm
from benchsuite.predict.theory.collectives import BUSBW, PASSES, terms, time_s
from benchsuite.probe.comm.step_tables import table
from tests.helpers.published_tables import all_rows

D, ALPHA, BETA, GAMMA = 1e6, 1e-3, 1e-8, 1e-9
"""An array of 1 MB takes 10 ms on a link and 1 ms to add up; a message costs 1 ms."""
BY_HAND = [
    # op, ranks: messages, arrays on a link, arrays added up
    ("all_reduce", 8, 14, 14 / 8, 7 / 8),
    ("all_reduce", 6, 10, 10 / 6, 5 / 6),
    ("reduce_scatter", 8, 7, 7 / 8, 7 / 8),
    ("all_gather", 8, 7, 7 / 8, 0),
    ("all_to_all", 8, 7, 7 / 8, 0),
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
    @pytest.mark.parametrize(("op", "ranks", "messages", "wire", "reduced"), BY_HAND)
    def test_by_hand(self, op: str, ranks: int, messages: float, wire: float, reduced: float) -> None:
        found = terms(op, ranks)
        assert (found.latency, found.wire, found.reduced) == pytest.approx((messages, wire, reduced))
        seconds = time_s(op, ranks, D, ALPHA, BETA, GAMMA)
        assert seconds == pytest.approx(messages * 1e-3 + wire * 10e-3 + reduced * 1e-3)

    @pytest.mark.parametrize("op", PASSES)
    def test_one_rank_costs_nothing(self, op: str) -> None:
        assert time_s(op, 1, D, ALPHA, BETA, GAMMA) == 0
        assert time_s(op, [1, 2], D, ALPHA, BETA, GAMMA)[1] > 0

    @pytest.mark.parametrize("op", PASSES)
    def test_arrays_are_the_same_as_scalars(self, op: str) -> None:
        ranks, sizes = np.array([1, 2, 3, 6, 8, 13]), np.array([[0.0], [1e3], [1e9]])
        found = time_s(op, num_ranks=ranks, num_bytes=sizes, alpha_s=ALPHA, beta_s_per_byte=BETA)
        assert found.shape == (3, 6) and found.dtype == np.float64
        each = [[float(time_s(op, n, d, ALPHA, BETA)) for n in ranks] for d in sizes[:, 0]]
        assert found.tolist() == each

    @pytest.mark.parametrize(
        ("op", "given", "line"),
        [
            ("allreduce", {}, "op 'allreduce' is unknown; nearest: all_reduce; allowed: all_reduce, .*"),
            ("all_reduce", {"num_ranks": 0}, "num_ranks 0 is not allowed; allowed: a whole number, 1 or above"),
            ("all_reduce", {"num_ranks": [4, 2.5]}, "num_ranks 2.5 is not allowed"),
            ("all_reduce", {"num_bytes": -1}, "num_bytes -1 is not allowed; allowed: a finite number, 0 or"),
            ("all_reduce", {"alpha_s": -1}, "alpha_s -1 is not allowed"),
            ("all_reduce", {"beta_s_per_byte": math.inf}, "beta_s_per_byte inf is not allowed"),
        ],
    )
    def test_refuses(self, op: str, given: dict[str, Any], line: str) -> None:
        valid: dict[str, Any] = {"num_ranks": 8, "num_bytes": D, "alpha_s": ALPHA, "beta_s_per_byte": BETA}
        with pytest.raises(ValueError, match=line):
            time_s(op, **valid | given)


class TestMeasured:
    @pytest.mark.parametrize(("n", "size", "op", "ms"), SHAPED_LINKS)
    def test_shaped_links(self, n: int, size: int, op: str, ms: float) -> None:
        """Within 4.5 %, with no latency and 25 MB/s out of each rank."""
        beta = 8 / 200e6
        if op == "broadcast":
            found = comm.time_s(table(op, "binomial", n), size, 0, beta)
        else:
            found = float(time_s(op, n, size, 0, beta))
        assert found * 1e3 == pytest.approx(ms, rel=0.045)

    def test_all_rows(self) -> None:
        for row in all_rows("gloo_shaped_links"):
            self.test_shaped_links(row["N"], row["bytes"], row["op"], row["ms"])

    @pytest.mark.parametrize(("n", "size", "us", "busbw"), NCCL)
    def test_busbw_of_nccl_tests(self, n: int, size: int, us: float, busbw: float) -> None:
        assert size / us / 1e3 * BUSBW["all_reduce"](n) == pytest.approx(busbw, rel=3e-4)

    def test_busbw_all_rows(self) -> None:
        for row in all_rows("nccl_allreduce_lut"):
            found = row["bytes"] / row["out_of_place_us"] / 1e3 * BUSBW["all_reduce"](row["ranks"])
            assert found == pytest.approx(row["busbw_GB_s"], rel=2e-3)
        for row in all_rows("allreduce_4node"):
            found = row["algbw_GB_s"] * BUSBW["all_reduce"](32)
            assert found == pytest.approx(row["busbw_GB_s"], abs=0.02)


class TestBusBandwidth:
    def test_factors(self) -> None:
        """nccl-tests' PERFORMANCE.md, of 4 ranks."""
        found = {op: float(factor(4)) for op, factor in BUSBW.items()}
        assert found == {
            "all_reduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75, "gather": 0.75,
            "scatter": 0.75, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "hypercube": 1.0,
        }  # fmt: skip

    def test_ratio_tells_how_many_ranks(self) -> None:
        """stas00/ml-engineering's four nodes: busbw / algbw = 1.9375, so 32 ranks."""
        assert BUSBW["all_reduce"](32) == 1.9375
        assert BUSBW["all_reduce"](np.array([1, 2, 8])).tolist() == [0, 1, 1.75]

    @pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
    def test_is_the_link_s_own_where_rings_are_ideal(self, op: str) -> None:
        """That is what busbw is for: 1 / beta at any number of ranks."""
        n = np.array([2, 4, 8, 512])
        assert D / time_s(op, n, D, 0, BETA) * BUSBW[op](n) == pytest.approx([1 / BETA] * 4)
