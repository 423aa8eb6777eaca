"""What `probe comm` is asked for, and nccl-tests' bandwidths."""

import re

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.probe.comm.collectives import CALLS, DTYPES
from benchsuite.probe.comm.request import (
    BUSBW,
    ELEMENT_BYTES,
    OPS,
    Cell,
    Request,
    busbw_bytes_per_s,
    cells,
    check_algorithms,
    lacking,
    parse_names,
)
from benchsuite.probe.ranks import leave_request, request_in
from benchsuite.probe.record import parse_counts, parse_sizes


def test_every_op_and_dtype_has_all_it_needs() -> None:
    assert set(OPS) == set(BUSBW) == set(CALLS)
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == dict(ELEMENT_BYTES)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """vTrain's table of nccl-tests' all_reduce_perf on A100s (data/, 2, 4 and 6 ranks): us and busbw in GB/s."""
    for ranks, num_bytes, us, busbw in (
        (2, 1048576, 44.21, 23.72),
        (4, 1048576, 51.4, 30.6),
        (4, 1073741824, 7259.4, 221.86),
        (6, 1073741824, 7883.3, 227.01),
    ):
        assert busbw_bytes_per_s("all_reduce", ranks, num_bytes, us * 1e-6) == pytest.approx(busbw * 1e9, rel=2e-4)
    # 4 nodes of 8 (stas00/ml-engineering): busbw/algbw 1.9375 = 2 x 31/32
    assert BUSBW["all_reduce"](32) == 1.9375 == pytest.approx(0.92 / 0.48, rel=0.02)
    assert [BUSBW[op](4) for op in ("all_gather", "reduce_scatter", "all_to_all")] == [0.75] * 3
    assert [BUSBW[op](4) for op in ("broadcast", "reduce", "send_recv")] == [1.0] * 3


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB:8KiB", (1024, 2048, 4096, 8192)),
        ("3:20", (3, 6, 12)),
        ("1MiB:1MiB", (1 << 20,)),
        ("4096,1KB,4096", (1000, 4096)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text, "--sizes") == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1KiB:", "--sizes '': not a size; allowed: a number and "),
        ("8KiB:1KiB", "--sizes '8KiB:1KiB': allowed: FIRST:LAST with 1 <= FIRST <= LAST"),
        ("0,5", "--sizes '0,5': allowed: 1 byte and above"),
        ("many", "--sizes 'many': not a size"),
    ],
)
def test_no_sizes(text: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        parse_sizes(text, "--sizes")


def test_names_and_ranks() -> None:
    assert parse_names("all", "--op", OPS) == OPS
    assert parse_names("reduce, all_reduce,reduce", "--op", OPS) == ("reduce", "all_reduce")
    with pytest.raises(UserError, match=r"--op 'all_reduc' is unknown; nearest: all_reduce; allowed: all_reduce, .*"):
        parse_names("all_reduc", "--op", OPS)
    assert parse_counts("4,2,2", "--world-size", 2) == (2, 4)
    for text in ("1", "2,x", "", "-2", "2.5"):
        with pytest.raises(UserError, match=r"--world-size .*: allowed: whole numbers from 2 on"):
            parse_counts(text, "--world-size", 2)


def test_cells_are_what_ranks_can_share() -> None:
    found = cells(("all_reduce", "all_gather"), ("backend",), ("fp32",), (1000, 1, 2), 3)
    assert [(cell.op, cell.num_bytes) for cell in found] == [
        ("all_reduce", 1000),
        ("all_reduce", 4),
        ("all_gather", 996),
        ("all_gather", 12),
    ]


def test_step_tables_are_asked_of_the_ops_that_have_them() -> None:
    found = cells(OPS, ("backend", "ring", "binomial", "torus"), ("int8",), (64,), 4)
    pairs = {(cell.op, cell.algorithm) for cell in found}
    assert pairs - {(op, "backend") for op in OPS} == {
        ("all_reduce", "ring"),
        ("all_reduce", "torus"),
        ("reduce_scatter", "ring"),
        ("all_gather", "ring"),
        ("broadcast", "binomial"),
        ("reduce", "binomial"),
    }
    places = {(cell.op, cell.algorithm): cell.in_place for cell in found}
    assert places["all_reduce", "backend"] and places["all_gather", "ring"] and not places["all_gather", "backend"]
    check_algorithms(("all_reduce",), ("backend", "tree"))
    with pytest.raises(UserError, match="--algorithm tree: not of broadcast; allowed with --op all_reduce"):
        check_algorithms(("broadcast",), ("tree",))


def test_ops_that_lack_a_step_table() -> None:
    assert lacking(("all_reduce", "broadcast"), ("backend", "ring", "binomial")) == (
        "all_reduce has no step table binomial",
        "broadcast has no step table ring",
    )


def test_a_request_comes_through_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cell = Cell("all_reduce", "torus", "bf16", 64, 6)
    asked = Request((cell, Cell("reduce", "backend", "fp32", 64, 6)), 5, 0.5, (1024,))
    leave_request(asked, tmp_path)
    assert request_in(tmp_path, Request) == asked
