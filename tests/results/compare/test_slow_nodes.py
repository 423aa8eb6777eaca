"""Which node is named as slow, worked out by hand."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchsuite.results.compare.slow_nodes import PROBED, lines, outliers, slow_links, unsteady

USUAL: dict[str, Any] = {
    "forward_s": 0.010,
    "backward_s": 0.020,
    "optimizer_s": 0.002,
    "h2d_s": 0.001,
    "loader_only_samples_per_s": 900.0,
    "storage_ceiling_bytes_per_s": 680e6,
}


def trials(node: str, wobble: float = 0.01, **change: Any) -> list[dict[str, Any]]:
    """Three repeats on a node, of which one is as usual, one faster and one slower."""
    base = USUAL | change
    return [
        {"spec.node": node, **{name: value and value * (1 + by * wobble) for name, value in base.items()}}
        for by in (-1, 0, 1)
    ]


def screened(*nodes: list[dict[str, Any]]) -> list[str]:
    return [str(found) for found in outliers([row for node in nodes for row in node])]


def test_nodes_that_are_alike() -> None:
    four = [row for name in "abcd" for row in trials(name)]
    assert outliers(four) == []
    assert lines(four) == ["4 nodes, none slower than the others by more than 5% and than chance explains"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"backward_s": 0.030},
            "c: slow device: 42 ms of computing a step, the median of nodes is 32 (+31%)",
        ),
        ({"h2d_s": 0.004}, "c: slow path to the device: 4 ms of copying a step, the median of nodes is 1 (+300%)"),
        (
            {"storage_ceiling_bytes_per_s": 204e6},
            "c: slow mount: 204 MB/s to a plain reader, the median of nodes is 680 (-70%)",
        ),
        (
            {"loader_only_samples_per_s": 450.0},
            "c: slow loading: 450 samples/s without a model, the median of nodes is 900 (-50%)",
        ),
    ],
)
def test_one_that_is_slow(change: dict[str, Any], words: str) -> None:
    assert screened(trials("a"), trials("b"), trials("c", **change), trials("d")) == [words]


def test_faster_is_no_outlier_and_nor_is_what_repeats_vary_by() -> None:
    assert screened(trials("a"), trials("b"), trials("c", backward_s=0.005)) == []
    assert screened(trials("a", 0.1), trials("b", 0.1), trials("c", 0.1, backward_s=0.024)) == []
    assert screened(trials("a"), trials("b"), trials("c", backward_s=0.0212)) == [], "below 5 % in all"


def test_missing_figures_and_too_few_nodes() -> None:
    assert screened(trials("a", h2d_s=None), trials("b", h2d_s=None), trials("c", h2d_s=float("nan"))) == []
    assert lines([*trials("a"), *trials("b", h2d_s=0.1)]) == ["2 nodes: an outlier can be told from 3 nodes on"]
    assert lines([{"forward_s": 1.0}]) == []


def test_a_flaky_node_hides_no_slow_one_and_is_named() -> None:
    """One loads at 450, 900 and 1350 samples/s, where others keep within 1 %; another one always at 700."""
    flaky = [
        row | {"loader_only_samples_per_s": 900.0 * by} for row, by in zip(trials("f"), (0.5, 1, 1.5), strict=True)
    ]
    slow = trials("s", loader_only_samples_per_s=700.0)
    rows = [*trials("a"), *trials("b"), *trials("c"), *flaky, *slow]
    assert lines(rows) == [
        "outlier  s: slow loading: 700 samples/s without a model, the median of nodes is 900 (-22%)",
        "unsteady f: unsteady loading: 450 to 1350 samples/s without a model in 3 repeats, 100% apart; "
        "the median of nodes is 2.0%",
    ]


def test_a_node_whose_repeats_differ_as_others_do_is_not_unsteady() -> None:
    assert unsteady([row for node in "abc" for row in trials(node, 0.2)]) == []
    few_per_cent = [row for node, wobble in (("a", 0.001), ("b", 0.001), ("c", 0.02)) for row in trials(node, wobble)]
    assert unsteady(few_per_cent) == [], "4 % is less than what matters"
    four_times = [row for node, wobble in (("a", 0.02), ("b", 0.02), ("c", 0.08)) for row in trials(node, wobble)]
    assert unsteady(four_times) == []
    twice = [row for node in "abc" for row in trials(node, 0.3 if node == "c" else 0.01)[:2]]
    assert unsteady(twice) == [], "two repeats"
    assert unsteady([*trials("a"), *trials("b", 0.5)]) == [], "two nodes"


def healthy(nodes: int, between: float, within: float, tails: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Three samples of six measures on each of some nodes that differ by chance alone."""
    names = [measure.columns[0] for measure in PROBED[:6]]

    def chance(*shape: int) -> npt.NDArray[np.float64]:
        if not tails:
            return rng.standard_normal(shape)
        return rng.standard_t(tails, shape) / math.sqrt(tails / (tails - 2))

    values = 100 * (1 + between * chance(nodes, 6, 1)) * (1 + within * chance(nodes, 6, 3))
    return [
        {"spec.node": str(node), **dict(zip(names, values[node, :, sample].tolist(), strict=True))}
        for node in range(nodes)
        for sample in range(3)
    ]


@pytest.mark.parametrize("nodes", [3, 4, 8, 16])
@pytest.mark.parametrize(("between", "within", "tails"), [(0.01, 0.01, 0), (0.03, 0.01, 0), (0.02, 0.01, 5)])
def test_few_screens_of_healthy_nodes_accuse_one(nodes: int, between: float, within: float, tails: int) -> None:
    """One in a hundred is allowed; of 300 screens so many have at most 8 with a probability of 99 %."""
    rng = np.random.default_rng(nodes)
    accusing = sum(bool(outliers(healthy(nodes, between, within, tails, rng), PROBED)) for _ in range(300))
    assert accusing <= 8


def links(nodes: int, rng: np.random.Generator) -> dict[tuple[str, str], list[float]]:
    """Rates between nodes of which each gives a little more or less to all."""
    able = 1 + 0.05 * rng.standard_normal(nodes)
    return {
        (str(one), str(other)): [1e10 * able[one] * able[other] * (1 + 0.02 * rng.standard_normal()) for _ in range(3)]
        for one, other in combinations(range(nodes), 2)
    }


@pytest.mark.parametrize("nodes", [8, 16, 40])
def test_a_slow_link_is_named_and_no_healthy_one(nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    assert sum(bool(slow_links(links(nodes, rng))) for _ in range(50 if nodes < 40 else 5)) <= 2
    rates = links(nodes, rng)
    rates["1", "3"] = [rate / 2 for rate in rates["1", "3"]]
    (found,) = slow_links(rates)
    assert found.who == "1 - 3" and "against what its nodes give with others" in found.words


def test_links_of_a_slow_node_are_not_accused() -> None:
    rates = links(8, np.random.default_rng(0))
    for link in rates:
        if "2" in link:
            rates[link] = [rate / 2 for rate in rates[link]]
    assert slow_links(rates) == []
    assert slow_links({link: found for link, found in rates.items() if max(link) < "7"}) == [], (
        "seven nodes are too few"
    )
