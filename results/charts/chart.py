"""Charts of the HTML report in Plotly's terms: lines over points that differ in one setting, and bars of each point."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchsuite.results.render.naming import PARALLELISM, mode_of
from benchsuite.results.render.tables import Column, Row, is_missing, is_number, telling
from benchsuite.results.scaling.series import FOLLOWS_RANKS, ONE_RANK
from benchsuite.results.store.frames import median_interval

Trace = dict[str, Any]
Numbered = tuple[int, Row]
"""A point with its number in the table of the page."""
Span = tuple[float, float, float]
"""A figure between its ends: low, figure, high."""
DIGITS = 5
"""Significant digits that a chart keeps."""
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6BB1", "#B3A100")
"""Okabe and Ito's palette, which the colour-blind tell apart; without yellow and black, unseen on white or on black."""
PART_COLORS = {
    "load": "#D55E00",
    "h2d": "#E69F00",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "communication": "#CC79A7",
    "bubble": "#B3A100",
    "optimizer": "#009E73",
    "other": "#999999",
}
"""The parts of a step in their order, each with its color."""
HIDDEN_WORDS = ("storage", "none")
"""Values that go without saying."""
MAX_LINES = 12
"""Lines of a chart that can be named in its legend; of more, groups can be chosen."""
GROUPED_BY = (
    "sweep",
    "session",
    "spec.workload",
    "spec.data.source",
    "spec.data.format",
    "spec.data.loader",
    PARALLELISM,
    "spec.precision",
    "spec.data.cache",
    "spec.data.staging",
)
"""Settings by which they are grouped, in this order until the groups are small enough."""
MEDIANS = "Median over repeats; bars: 95 % interval from six repeats on, else the range."
MARGIN = 0.04
"""Decades beside the ends of a logarithmic axis."""
UNTOLD = ("spec.measure.", "spec.data.root", "spec.data.staging_dir", "spec.nodes", "spec.ranks_per_node")
"""Settings that make no series of their own."""


@dataclass(frozen=True)
class Table:
    """A table below a chart."""

    title: str
    headings: Sequence[tuple[str, bool]]
    """Each with whether its cells stand to the right."""
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def table(title: str, found: Sequence[Row], columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Rows in the columns that say anything of them."""
    shown = telling(found, columns)
    cells = [[column.cell(row) for column in shown] for row in found]
    return Table(title, [(column.heading, column.right) for column in shown], cells, notes)


@dataclass(frozen=True)
class Chart:
    """A chart of the page. Elements of a trace carry the number of their point in `customdata`; so the page filters."""

    key: str
    """The chart's place on the page; charts with one key and different choices share it."""
    title: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    lines: Sequence[str] = ()
    """Text below it."""
    choice: str = ""
    bars: bool = False
    """`y` holds numbers of points, which the page turns into their labels."""
    by_value: bool = False
    """Draw `bars` with the largest first, not as the points stand in their table."""
    tables: Sequence[Table] = ()
    """What stands below it, in cells."""
    cells: Sequence[tuple[str, str, float, int]] = ()
    """x, y, value and point: a heat map of medians."""
    groups: Sequence[tuple[str, Sequence[int]]] = ()
    """Choices of some of the traces: a name, and the places of its traces. Empty: all are always drawn."""


def places(points: Sequence[Numbered]) -> dict[tuple[str, str], int]:
    """The number of each point, by its session and id."""
    return {(str(row["session"]), str(row["point_id"])): number for number, row in points}


def rounded(value: Any, scale: float = 1.0) -> float | None:
    """A figure times scale, to the digits that a chart keeps; None where it is missing or no finite number."""
    if is_missing(value) or not math.isfinite(value):
        return None
    return float(f"{value * scale:.{DIGITS}g}")


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def log_axis(values: Collection[float], title: str = "ranks") -> dict[str, Any]:
    """A logarithmic axis with a tick at each value, and room beside the first and the last."""
    ticks = sorted({value for value in values if value > 0}) or [1]
    ends = [math.log10(ticks[0]) - MARGIN, math.log10(ticks[-1]) + MARGIN]
    return axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], range=ends)


def lines(points: Sequence[Numbered], along: str, ignored: Collection[str]) -> list[tuple[str, list[Numbered]]]:
    """Points that differ only in `along` and in what is ignored, each group by name and in order of `along`.

    Groups stay within their sweep and session; these are named where there are several.
    """
    sections: dict[tuple[str, str], list[Numbered]] = {}
    for number, row in points:
        if is_number(row.get(along)):
            sections.setdefault((row["sweep"], row["session"]), []).append((number, row))
    sweeps = {sweep for sweep, _ in sections}
    several = (len(sweeps) > 1, len(sections) > len(sweeps))
    found = []
    for key, members in sections.items():
        prefix = [word for word, told in zip(key, several, strict=True) if told]
        for name, group in _groups(members, along, ignored):
            found.append((" ".join([*prefix, name]).strip() or key[0], group))
    return found


def _groups(members: Sequence[Numbered], along: str, ignored: Collection[str]) -> list[tuple[str, list[Numbered]]]:
    """The groups of one section; where two points of a group have the same `along`, all settings tell them apart."""
    found = []
    for name, group in _told_apart(members, {along, *ignored}):
        doubled = len({row[along] for _, row in group}) < len(group)
        apart = _told_apart(group, {along}) if doubled else [("", group)]
        found += [
            (f"{name} {more}".strip(), sorted(part, key=lambda one: float(one[1][along]))) for more, part in apart
        ]
    return found


def _told_apart(members: Sequence[Numbered], ignored: Collection[str]) -> list[tuple[str, list[Numbered]]]:
    rows = [row for _, row in members]
    apart = [key for key in varied(rows) if key not in ignored]
    named = [key for key in apart if len({repr(_value(row, key)) for row in rows if _applies(row, key)}) > 1]
    groups: dict[object, list[Numbered]] = {}
    for number, row in members:
        groups.setdefault(tuple(repr(_value(row, key)) for key in apart), []).append((number, row))
    return [(_name(group[0][1], named), group) for group in groups.values()]


def varied(rows: Sequence[Row]) -> list[str]:
    """The settings in which rows differ, that make series; degrees of parallelism are one, in words."""
    names = dict.fromkeys(key for row in rows for key in row if key.startswith("spec."))
    keys = dict.fromkeys(PARALLELISM if key.startswith(f"{PARALLELISM}.") else key for key in names)
    return _differing(rows, [key for key in keys if not key.startswith(UNTOLD)])


def varied_degrees(rows: Sequence[Row]) -> list[str]:
    """The single degrees of parallelism in which rows differ."""
    return _differing(rows, dict.fromkeys(key for row in rows for key in row if key.startswith(f"{PARALLELISM}.")))


def _differing(rows: Sequence[Row], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if len({repr(_value(row, key)) for row in rows}) > 1]


def setting(row: Row, key: str) -> Any:
    """A setting that says something of a row; None where it says nothing."""
    return _value(row, key) if _applies(row, key) else None


def _value(row: Row, key: str) -> Any:
    """A setting, parallelism in words; a single rank's mode is that of its series."""
    value = row.get(key)
    if key == PARALLELISM:
        return "ddp" if value in ONE_RANK and row.get("spec.world_size") == 1 else mode_of(row) or None
    return None if is_missing(value) else value


def _applies(row: Row, key: str) -> bool:
    """Settings of reading say nothing where nothing is read."""
    return not key.startswith("spec.data.") or key.endswith(".source") or row.get("spec.data.source") == "storage"


def _name(row: Row, keys: Sequence[str]) -> str:
    words = [_word(key.rpartition(".")[2], _value(row, key)) for key in keys if _applies(row, key)]
    return " ".join(word for word in words if word)


def _word(name: str, value: Any) -> str:
    if value is None or value is False or value in HIDDEN_WORDS:
        return ""
    if value is True:
        return name
    return f"{name} {value:g}" if isinstance(value, int | float) else str(value)


def scatter(name: str, x: Sequence[Any], y: Sequence[Any], mode: str = "lines+markers", **more: Any) -> Trace:
    """Points of a name, joined or not."""
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **more}


def lying_bars(name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> Trace:
    """Bars of a name that lie."""
    return {"type": "bar", "orientation": "h", "name": name, "x": x, "y": y, **more}


def no_result(x: Sequence[Any], **more: Any) -> Trace:
    """What ran without a result, as crosses on the floor."""
    marker = {"symbol": "x", "size": 9, "color": "#D55E00"}
    return scatter("no result", x, [0] * len(x), "markers", marker=marker, cliponaxis=False, **more)


def error_bars(spans: Sequence[Span], scale: float = 1.0) -> dict[str, Any]:
    """Error bars of figures times scale, each with the ends around it: low, figure, high."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [rounded(max(0.0, high - middle), scale) for _, middle, high in spans],
        "arrayminus": [rounded(max(0.0, middle - low), scale) for low, middle, _ in spans],
        "thickness": 1,
    }


def span(row: Row, name: str, *ends: tuple[str, str]) -> Span:
    """A figure between the first of the pairs of ends that it has, or alone.

    Default ends: those of the 95 % interval where it has one, else of the range over repeats.
    """
    middle = float(row[name])
    for low, high in ends or ((f"{name}_low", f"{name}_high"), (f"{name}_min", f"{name}_max")):
        if not is_missing(row.get(low)) and not is_missing(row.get(high)):
            return float(row[low]), middle, float(row[high])
    return middle, middle, middle


def span_of(repeats: Sequence[float]) -> Span:
    """The median of repeats in its 95 % interval where there is one, else in their range."""
    low, high = median_interval(list(repeats))
    ends = (min(repeats), max(repeats)) if low is None or high is None else (low, high)
    return ends[0], median(repeats), ends[1]


def line(name: str, group: Sequence[Numbered], along: str, figure: str, scale: float = 1.0) -> Trace | None:
    """A figure of a group of points as a line with error bars; None where no point has it."""
    known = [(number, row) for number, row in group if not is_missing(row.get(figure))]
    if not known:
        return None
    x, y = [row[along] for _, row in known], [rounded(row[figure], scale) for _, row in known]
    error = error_bars([span(row, figure) for _, row in known], scale)
    return scatter(name, x, y, error_y=error, customdata=[number for number, _ in known])


def lost(points: Sequence[Numbered], along: str) -> list[Trace]:
    """Points that ran without a result, as crosses on the floor."""
    found = [(n, row) for n, row in points if row["status"] not in ("ok", "skipped") and not is_missing(row.get(along))]
    return [no_result([row[along] for _, row in found], customdata=[number for number, _ in found])] if found else []


def against_ranks(points: Sequence[Numbered], key: str, title: str, figure: str, unit: str) -> list[Chart]:
    """A figure against ranks, a line per group of points that differ in nothing else; none where no point has it."""
    along = "spec.world_size"
    drawn = [(group, line(name, group, along, figure)) for name, group in lines(points, along, FOLLOWS_RANKS)]
    traces = [found for _, found in drawn if found is not None]
    if not traces:
        return []
    ranks = {int(row[along]) for _, row in points if not is_missing(row.get(along))}
    if len(ranks) == 1:  # lines over one x say less than sorted dots
        return []
    layout = {"xaxis": log_axis(ranks), "yaxis": axis(unit, rangemode="tozero")}
    if len(traces) <= MAX_LINES:
        return [Chart(key, title, [*traces, *lost(points, along)], layout, MEDIANS)]
    parts = [[*([] if found is None else [found]), *lost(group, along)] for group, found in drawn]
    groups = grouped([group[0][1] for group, _ in drawn], list(map(len, parts)))
    return [Chart(key, title, list(itertools.chain(*parts)), layout, MEDIANS, groups=groups)]


def against_batch(points: Sequence[Numbered]) -> list[Chart]:
    """Throughput against the batch of a rank, of points that differ in nothing else; none where no batch varies."""
    along = "spec.batch_size"
    drawn = [(group, line(name, group, along, "samples_per_s")) for name, group in lines(points, along, ())]
    varied = [(group, found) for group, found in drawn if found is not None and len({*found["x"]}) > 1]
    if not varied:
        return []
    sizes = {float(row[along]) for group, _ in varied for _, row in group}
    layout = {"xaxis": log_axis(sizes, "batch of a rank"), "yaxis": axis("samples/s", rangemode="tozero")}
    parts = [[found, *lost(group, along)] for group, found in varied]
    groups = grouped([group[0][1] for group, _ in varied], list(map(len, parts)))
    return [Chart("batch", "Throughput against batch", list(itertools.chain(*parts)), layout, MEDIANS, groups=groups)]


def grouped(rows: Sequence[Row], sizes: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Choices of few enough series to be named in a legend, after that of all; none where no setting parts them.

    Args:
        rows: a point of each series.
        sizes: the traces of each, which stand one after another.
    """
    keys = [key for key in GROUPED_BY if len({_group_word(row, key) for row in rows}) > 1]
    if len(rows) <= MAX_LINES or not keys:
        return []
    ends = list(itertools.accumulate(sizes))
    places = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    for count in range(1, len(keys) + 1):
        found: dict[str, list[range]] = {}
        for row, own in zip(rows, places, strict=True):
            words = dict.fromkeys(_group_word(row, key) for key in keys[:count])
            found.setdefault(" ".join(filter(None, words)) or "others", []).append(own)
        if max(map(len, found.values())) <= MAX_LINES:
            break
    whole = (f"all {len(rows)} series", list(range(ends[-1])))
    return [whole, *((name, list(itertools.chain(*part))) for name, part in found.items())]


def _group_word(row: Row, key: str) -> str:
    return _word(key.rpartition(".")[2], _value(row, key)) if _applies(row, key) else ""


def stacked(points: Sequence[Numbered], columns: Mapping[str, str], scale: float) -> list[Trace]:
    """Horizontal bars, a trace for each named column times scale, of the points that have it."""
    traces = []
    for name, column in columns.items():
        found = [(number, rounded(row.get(column), scale)) for number, row in points]
        known = [(number, size) for number, size in found if size is not None]
        if any(size for _, size in known):
            numbers = [number for number, _ in known]
            traces.append(lying_bars(name, [size for _, size in known], numbers, customdata=numbers))
    return traces
