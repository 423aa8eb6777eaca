"""Layouts: names and degrees, the arithmetic of those that do not fit, and who is where."""

from typing import Any

import pytest

from benchsuite.workloads.layout import Layout, LayoutError, Place, layout_of, rank_map
from benchsuite.workloads.spec import Parallelism
from tests.helpers.snapshots import compare_messages


@pytest.mark.parametrize(
    ("name", "ranks", "expected"),
    [
        ("none", 1, Layout("none")),
        ("ddp", 4, Layout("ddp", dp=4)),
        ("zero1", 4, Layout("zero1", dp=4, zero=1)),
        ("zero2", 4, Layout("zero2", dp=4, zero=2)),
        ("fsdp", 4, Layout("fsdp", dp=4, zero=3)),
        ("hsdp", 4, Layout("hsdp", dp=4, dp_replicate=2, zero=3)),
        ("tp", 4, Layout("tp", tp=4)),
        ("pp", 4, Layout("pp", pp=4, microbatches=4)),
        ("cp", 4, Layout("cp", cp=4)),
        ("ep", 4, Layout("ep", dp=4, ep=4)),
    ],
)
def test_names_stand_for_degrees(name: str, ranks: int, expected: Layout) -> None:
    assert layout_of(name, ranks) == expected
    assert layout_of(name, ranks).world_size == ranks


@pytest.mark.parametrize(
    ("ranks", "ranks_per_node", "replicas"),
    [(4, None, 2), (8, 8, 2), (16, 8, 2), (32, 8, 4), (12, 4, 3), (4, 1, 2), (18, 8, 2), (2, 2, 2)],
)
def test_hsdp_has_a_replica_on_each_node(ranks: int, ranks_per_node: int | None, replicas: int) -> None:
    """On one node two, and where nodes have one rank each, or not all as many, two as well."""
    assert layout_of("hsdp", ranks, ranks_per_node).dp_replicate == replicas


@pytest.mark.parametrize(
    ("degrees", "ranks", "dp", "name"),
    [
        ({"tp": 2}, 8, 4, "dp 4 tp 2"),
        ({"tp": 2, "pp": 2}, 8, 2, "dp 2 tp 2 pp 2 schedule 1f1b"),
        ({"dp": 2, "tp": 2}, None, 2, "dp 2 tp 2"),
        ({"tp": 2}, None, 1, "tp 2"),
        ({"tp": 2, "zero": 3}, 8, 4, "dp 4 tp 2 zero 3"),
        ({"zero": 3, "dp_replicate": 2}, 8, 8, "dp 8 dp_replicate 2 zero 3"),
        ({"cp": 2, "tp": 2}, 8, 2, "dp 2 tp 2 cp 2 cp_attention ring"),
        ({"cp": 2, "zero": 3, "cp_attention": "all_to_all"}, 4, 2, "dp 2 cp 2 cp_attention all_to_all zero 3"),
    ],
)
def test_an_omitted_dp_is_what_is_left(degrees: dict[str, int], ranks: int | None, dp: int, name: str) -> None:
    layout = layout_of(Parallelism(**degrees), ranks)
    assert (layout.dp, layout.name) == (dp, name)


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    cases = [
        ("none", 2),
        ("3d", 8),
        ("hsdp", 3),
        ({"tp": 3}, 8),
        ({"dp": 2, "tp": 2}, 8),
        ({"tp": 2, "microbatches": 4}, 2),
        ({"ep": 3}, 4),
        ({"cp": 2, "tp": 2, "dp": 3}, 8),
        ({"cp": 1, "cp_attention": "all_to_all"}, 4),
    ]

    def message(mode: str | dict[str, Any], ranks: int) -> str:
        with pytest.raises(LayoutError) as caught:
            layout_of(mode if isinstance(mode, str) else Parallelism(**mode), ranks)
        return str(caught.value)

    compare_messages("degrees", cases, message)


def test_ranks_count_innermost_first() -> None:
    layout = layout_of(Parallelism(tp=2, pp=2, dp=2), 8)
    assert [layout.place(rank) for rank in range(8)] == [
        Place(tp=0, dp=0, pp=0),
        Place(tp=1, dp=0, pp=0),
        Place(tp=0, dp=1, pp=0),
        Place(tp=1, dp=1, pp=0),
        Place(tp=0, dp=0, pp=1),
        Place(tp=1, dp=0, pp=1),
        Place(tp=0, dp=1, pp=1),
        Place(tp=1, dp=1, pp=1),
    ]


def test_ranks_that_share_sequences_lie_between_those_of_tp_and_dp() -> None:
    layout = layout_of(Parallelism(tp=2, cp=2, dp=2, pp=2), 16)
    assert rank_map(layout, 8)[1][:5] == [
        "tp0 cp0 dp0 pp1",
        "tp1 cp0 dp0 pp1",
        "tp0 cp1 dp0 pp1",
        "tp1 cp1 dp0 pp1",
        "tp0 cp0 dp1 pp1",
    ]
    assert (layout.replicas, layout.world_size) == (4, 16)


def test_the_map_of_two_nodes_of_eight() -> None:
    """tp2 x pp4 x dp2: tensor-parallel pairs and whole replicas of a stage stay within a node."""
    layout = layout_of(Parallelism(tp=2, pp=4, dp=2), 16)
    first, second = rank_map(layout, 8)
    assert first == [
        "tp0 dp0 pp0",
        "tp1 dp0 pp0",
        "tp0 dp1 pp0",
        "tp1 dp1 pp0",
        "tp0 dp0 pp1",
        "tp1 dp0 pp1",
        "tp0 dp1 pp1",
        "tp1 dp1 pp1",
    ]
    assert second == [words.replace("pp1", "pp3").replace("pp0", "pp2") for words in first]


def test_degrees_of_one_are_left_out_of_the_map() -> None:
    assert rank_map(layout_of("ddp", 3), 2) == [["dp0", "dp1"], ["dp2"]]
    assert rank_map(layout_of("none", 1), 8) == [["all"]]


@pytest.mark.parametrize(
    ("mode", "ranks", "needed"),
    [("none", 1, False), ("ddp", 1, True), (Parallelism(zero=3), 1, True), (Parallelism(), 1, False), ("tp", 2, True)],
)
def test_one_rank_forms_a_group_where_its_mode_shards(mode: str | Parallelism, ranks: int, needed: bool) -> None:
    assert layout_of(mode, ranks).needs_group is needed
