"""Which node of an allocation is slower than the others, or unsteady, from small trials on each of them alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted

NODE = "spec.node"
MIN_NODES = 3
"""The least number of nodes: of two that differ, nobody can tell which is the odd one."""
MIN_DIFFERENCE = 0.05
SPREADS = 3.0
MIN_REPEATS = 3
"""Ranges of two repeats of the same distribution differ too much to tell a node by them."""
UNSTEADY_RANGES = 5.0
"""Range from which on a node is unsteady.

Of nodes whose three repeats are normal alike, fewer than 1 in 1,000 go beyond, with 16 nodes 1 in 30,000.
"""
MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclass(frozen=True)
class Measure:
    """What is compared between nodes."""

    name: str
    columns: tuple[str, ...]
    """Added up."""
    more_is_better: bool
    scale: float
    unit: str


MEASURES = (
    Measure("slow device", ("forward_s", "backward_s", "optimizer_s"), False, 1e3, "ms of computing a step"),
    Measure("slow path to the device", ("h2d_s",), False, 1e3, "ms of copying a step"),
    Measure("slow loading", ("loader_only_samples_per_s",), True, 1.0, "samples/s without a model"),
    Measure("slow mount", ("storage_ceiling_bytes_per_s",), True, 1e-6, "MB/s to a plain reader"),
)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def outliers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Nodes that lie on the slow side of the median of nodes by more than 5 % and three robust standard deviations.

    The deviation is that of the nodes' medians (1.4826 times their median absolute deviation), or that of the repeats
    on a node, by the median over nodes, where that is more. Fewer than three nodes have no outlier.

    Args:
        rows: one per trial, with `spec.node` and figures by name, as `ResultsStore.frame` gives them.
    """
    return [found for measure, values in _compared(rows) for found in _of(measure, values)]


def unsteady(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Nodes whose repeats range over more than 5 % of the median of nodes, and five times the nodes' median range."""
    return [found for measure, values in _compared(rows) for found in _unsteady_of(measure, values)]


def _compared(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Measure, dict[str, list[float]]]]:
    """What enough nodes have, node by node."""
    for measure in MEASURES:
        values = _by_node(rows, measure)
        if len(values) >= MIN_NODES:
            yield measure, values


def _by_node(rows: Sequence[Mapping[str, Any]], measure: Measure) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in rows:
        parts = [row.get(column) for column in measure.columns]
        known = [float(part) for part in parts if part is not None and not is_missing(part)]
        if row.get(NODE) and len(known) == len(parts):
            values.setdefault(str(row[NODE]), []).append(sum(known))
    return values


def _of(measure: Measure, values: Mapping[str, Sequence[float]]) -> list[str]:
    medians = {node: median(found) for node, found in values.items()}
    usual = median(medians.values())
    if usual <= 0:
        return []
    between = MAD_TO_SIGMA * median(abs(value - usual) for value in medians.values())
    within = median(_spread(found) for found in values.values())
    least = max(MIN_DIFFERENCE * usual, SPREADS * max(between, within))
    slower = -1 if measure.more_is_better else 1
    return [
        f"{node}: {measure.name}: {_digits(value * measure.scale)} {measure.unit}, the median of nodes is "
        f"{_digits(usual * measure.scale)} ({value / usual - 1:+.0%})"
        for node, value in medians.items()
        if slower * (value - usual) > least
    ]


def _unsteady_of(measure: Measure, values: Mapping[str, Sequence[float]]) -> list[str]:
    usual = median(median(found) for found in values.values())
    if usual <= 0:
        return []
    ranges = {node: (max(found) - min(found)) / usual for node, found in values.items()}
    usual_range = median(ranges.values())
    most = max(MIN_DIFFERENCE, UNSTEADY_RANGES * usual_range)
    return [
        f"{node}: unsteady {measure.name.removeprefix('slow ')}: {_digits(min(found) * measure.scale)} to "
        f"{_digits(max(found) * measure.scale)} {measure.unit} in {len(found)} repeats, {ranges[node]:.0%} apart; "
        f"the median of nodes is {usual_range:.1%}"
        for node, found in values.items()
        if ranges[node] > most and len(found) >= MIN_REPEATS
    ]


def _spread(found: Sequence[float]) -> float:
    middle = median(found)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in found)


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a screen of nodes has found, for people; empty for trials that were on no node in particular."""
    nodes = {str(row[NODE]) for row in rows if row.get(NODE)}
    if not nodes:
        return []
    odd = [f"outlier  {found}" for found in outliers(rows)] + [f"unsteady {found}" for found in unsteady(rows)]
    if odd:
        return odd
    if len(nodes) < MIN_NODES:
        return [f"{counted(len(nodes), 'node')}: an outlier can be told from {MIN_NODES} nodes on"]
    return [f"{len(nodes)} nodes, none slower than the others by more than {MIN_DIFFERENCE:.0%} and the spread"]
