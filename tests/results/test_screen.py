"""Which node is named as slow, worked out by hand."""

from typing import Any

import pytest

from results.screen import lines, outliers

USUAL: dict[str, Any] = {
    "forward_s": 0.010,
    "backward_s": 0.020,
    "update_s": 0.002,
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
    assert lines(four) == ["4 nodes, none slower than the others by more than 5% and the spread"]


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
