"""Which node or link of an allocation is slower than the others, or unsteady: from small trials on each node alone, or
from what `probe nodes` measured.

A healthy node is accused in fewer than 1 of 100 screens, however many nodes and measures there are: see `_least`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted

Row = Mapping[str, Any]
NODE = "spec.node"
MIN_NODES = 3
"""The least number of nodes: of two that differ, nobody can tell which is the odd one."""
MIN_DIFFERENCE = 0.05
FALSE_ACCUSATIONS = 0.01
"""The most screens of healthy nodes of a hundred in which one is accused."""
DEGREES = ((500, 6), (32, 5), (12, 4), (8, 3), (4, 2), (0, 1))
"""Numbers of nodes, and from each on the degrees of freedom of the Student's t that deviations are judged by.

Found by simulation of nodes that are normal alike, or have the tails of Student's t of 5 degrees: fewer degrees than
there are nodes, since of so few neither the spread nor its tails are known well.
"""
MIN_NODES_OF_LINKS = 8
"""Nodes that are needed: of fewer, what is the link's and what is its nodes' cannot be told apart."""
MIN_LINK_DIFFERENCE = 0.1
LINKS_SHARE = 0.2
"""Share of the false accusations that are allowed: nodes have used up most of them."""
POLISHES = 20
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


def _product(precision: str) -> Measure:
    return Measure(f"slow in {precision}", (f"gemm_{precision}_tflops",), True, 1.0, "TFLOP/s of matrix products")


PROBED = (
    *(_product(precision) for precision in ("fp32", "tf32", "bf16", "fp16")),
    Measure("slow memory", ("memory_bytes_per_s",), True, 1e-9, "GB/s"),
    Measure("slow copies to the device", ("h2d_bytes_per_s",), True, 1e-9, "GB/s"),
    Measure("slow copies to the host", ("d2h_bytes_per_s",), True, 1e-9, "GB/s"),
    Measure("slow storage", ("storage_bytes_per_s",), True, 1e-6, "MB/s"),
    Measure("slow network", ("pair_bytes_per_s",), True, 1e-9, "GB/s with other nodes"),
)
"""What `probe nodes` measures."""


@dataclass(frozen=True)
class Accused:
    """A node, a device of one, or a link that is slower than it should be."""

    who: str
    words: str

    def __str__(self) -> str:
        return f"{self.who}: {self.words}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def outliers(rows: Sequence[Row], measures: Sequence[Measure] = MEASURES) -> list[Accused]:
    """Nodes that lie on the slow side of the median of nodes by more than 5 % and more than chance explains.

    Fewer than three nodes have no outlier.

    Args:
        rows: one per trial, with `spec.node` and figures by name, as `ResultsStore.frame` gives them.
        measures: what is compared.
    """
    compared = [*_compared(rows, measures)]
    number = sum(len(values) for _, values in compared)
    return [found for measure, values in compared for found in _of(measure, values, number)]


def slow_links(rates: Mapping[tuple[str, str], Sequence[float]]) -> list[Accused]:
    """Links that give less than what both their nodes give with others lets expect, by more than 10 % and than chance.

    A rate is taken as the product of what its two nodes can do; these are found by medians (Tukey's median polish), so
    that a slow node is not a reason to accuse its links.

    Args:
        rates: bytes/s by the names of two nodes, in several samples.
    """
    nodes = sorted({node for link in rates for node in link})
    if len(nodes) < MIN_NODES_OF_LINKS:
        return []
    logs = {link: math.log(median(found)) for link, found in rates.items()}
    able = dict.fromkeys(nodes, median(logs.values()) / 2)
    for _ in range(POLISHES):
        for node in nodes:
            able[node] = median(log - able[_other(link, node)] for link, log in logs.items() if node in link)
    share = {link: [math.exp(log - able[link[0]] - able[link[1]])] for link, log in logs.items()}
    values = {" - ".join(link): found for link, found in share.items()}
    least = _least(values, True, round(len(values) / LINKS_SHARE), MIN_LINK_DIFFERENCE)
    usual = median(found[0] for found in values.values())
    return [
        Accused(
            name,
            f"slow link: {median(rates[link]) / 1e9:.3g} GB/s, {share[link][0] - 1:+.0%} against what its nodes give "
            "with others",
        )
        for link, name in zip(rates, values, strict=True)
        if usual - share[link][0] > least
    ]


def _other(link: tuple[str, str], node: str) -> str:
    return link[0] if link[1] == node else link[1]


def unsteady(rows: Sequence[Row]) -> list[str]:
    """Nodes whose repeats range over more than 5 % of the median of nodes, and five times the nodes' median range."""
    return [found for measure, values in _compared(rows, MEASURES) for found in _unsteady_of(measure, values)]


def _compared(rows: Sequence[Row], measures: Sequence[Measure]) -> Iterator[tuple[Measure, dict[str, list[float]]]]:
    """What enough nodes have, node by node."""
    for measure in measures:
        values = _by_node(rows, measure)
        if len(values) >= MIN_NODES:
            yield measure, values


def _by_node(rows: Sequence[Row], measure: Measure) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in rows:
        parts = [row.get(column) for column in measure.columns]
        known = [float(part) for part in parts if part is not None and not is_missing(part)]
        if row.get(NODE) and len(known) == len(parts):
            values.setdefault(str(row[NODE]), []).append(sum(known))
    return values


def _of(measure: Measure, values: Mapping[str, Sequence[float]], number: int) -> list[Accused]:
    medians = {node: median(found) for node, found in values.items()}
    usual = median(medians.values())
    if usual <= 0:
        return []
    least = _least(values, measure.more_is_better, number)
    slower = -1 if measure.more_is_better else 1
    return [
        Accused(
            node,
            f"{measure.name}: {_digits(value * measure.scale)} {measure.unit}, the median of nodes is "
            f"{_digits(usual * measure.scale)} ({value / usual - 1:+.0%})",
        )
        for node, value in medians.items()
        if slower * (value - usual) > least
    ]


def _least(
    values: Mapping[str, Sequence[float]], more_is_better: bool, number: int, min_difference: float = MIN_DIFFERENCE
) -> float:
    """How far on the slow side of their median a node must lie to be accused, of so many comparisons in all.

    By how far nodes lie on the fast side, where no slow one is; and by the repeats on a node, by the median over nodes.
    Both times the quantile that chance passes in 1 of 100 screens (Bonferroni): of Student's t, and of the normal.
    """
    from scipy.stats import norm, t

    medians = [median(found) for found in values.values()]
    usual, sign = median(medians), 1 if more_is_better else -1
    fast = [(value - usual) ** 2 for value in medians if sign * (value - usual) > 0]
    between = math.sqrt(fmean(fast)) if fast else 0.0
    within = median(_spread(found) for found in values.values())
    chance = FALSE_ACCUSATIONS / number
    degrees = next(degrees for nodes, degrees in DEGREES if len(medians) >= nodes)
    return max(
        min_difference * usual, float(t.ppf(1 - chance, degrees)) * between, float(norm.ppf(1 - chance)) * within
    )


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


def lines(rows: Sequence[Row]) -> list[str]:
    """What a screen of nodes has found, for people; empty for trials that were on no node in particular."""
    nodes = {str(row[NODE]) for row in rows if row.get(NODE)}
    if not nodes:
        return []
    odd = [f"outlier  {found}" for found in outliers(rows)] + [f"unsteady {found}" for found in unsteady(rows)]
    if odd:
        return odd
    if len(nodes) < MIN_NODES:
        return [f"{counted(len(nodes), 'node')}: an outlier can be told from {MIN_NODES} nodes on"]
    return [
        f"{len(nodes)} nodes, none slower than the others by more than {MIN_DIFFERENCE:.0%} and than chance explains"
    ]
