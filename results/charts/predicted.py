"""Charts of predictions: a series' throughput and efficiency behind its measured points, with the interval shaded."""

from collections.abc import Sequence
from statistics import median

from benchsuite.results.charts.chart import COLORS, Chart, Trace, axis, error_bars, log_axis, rounded, span_of
from benchsuite.results.charts.scaling import Place, errors, number_of
from benchsuite.results.render.tables import Row
from benchsuite.results.render.words import counted
from benchsuite.results.report.modelled import Predicted
from benchsuite.results.scaling.efficiency import pooled
from benchsuite.results.scaling.series import ScalingPoint

SHADE, LINE = "rgba(128, 150, 175, 0.32)", "#2F8FD0"
"""Seen on white and on black."""
NAMES = {"samples_per_s": "samples/s", "efficiency": "efficiency"}
HEIGHT = 560
NOTE = (
    "Points: median over repeats; bars: 95 % interval from six repeats on, else the range. Line: the fitted model, "
    "dashed beyond the largest scale measured; shaded: its 90 % interval."
)


def charts(found: Sequence[Predicted], place: Place, left_out: str = "") -> list[Chart]:
    """A chart of each series that has a measured point: throughput above, efficiency below.

    `left_out`: what else there is, told with each.
    """
    note = f"{NOTE} {left_out}" if left_out else NOTE
    return [_chart(one, place, note) for one in found if _measured(one)]


def _measured(one: Predicted) -> list[ScalingPoint]:
    return [point for point in one.series.points if point.trials]


def _chart(one: Predicted, place: Place, note: str) -> Chart:
    measured = _measured(one)
    number = number_of(measured[0], place)
    traces = [
        trace
        for row, figure in enumerate(NAMES, 1)
        for trace in (*_curve(one, figure, row, number), _points(one, figure, row, place))
    ]
    ranks = {point.ranks for point in measured} | {int(row["ranks"]) for row in one.rows}
    below = log_axis(one.ticks) | {"range": log_axis(ranks)["range"], "anchor": "y2"}
    layout = {
        "xaxis": below,
        "yaxis": axis(NAMES["samples_per_s"], rangemode="tozero", domain=[0.54, 1.0]),
        "yaxis2": axis(NAMES["efficiency"], rangemode="tozero", domain=[0.0, 0.46]),
        "height": HEIGHT,
    }
    told = [one.title, *([f"no prediction: {one.problem}"] if one.problem else []), *one.lines]
    choice = f"{one.title} · {one.series.example['session']}"
    return Chart("predicted", "Predicted behind measured", traces, layout, note, told, choice=choice)


def _curve(one: Predicted, figure: str, row: int, number: int) -> list[Trace]:
    """The shaded interval, the curve as far as was measured, and beyond."""
    if not one.rows:
        return []
    most = max(point.ranks for point in _measured(one))
    within = [known for known in one.rows if known["ranks"] <= most]
    beyond = [known for known in one.rows if known["ranks"] >= most]
    shared = {"type": "scatter", "meta": {"point": number}, "yaxis": _y(row)}
    ranks = [known["ranks"] for known in one.rows]
    shade: Trace = {
        **shared,
        "mode": "lines",
        "name": "90 % interval",
        "x": [*ranks, *reversed(ranks)],
        "y": [*_column(one.rows, f"{figure}_high"), *reversed(_column(one.rows, f"{figure}_low"))],
        "fill": "toself",
        "fillcolor": SHADE,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    return [shade, *_lines(within, beyond, figure, shared)]


def _lines(within: Sequence[Row], beyond: Sequence[Row], figure: str, shared: Trace) -> list[Trace]:
    parts = (("fitted", within, "solid"), ("predicted", beyond, "dash"))
    return [
        {
            **shared,
            "mode": "lines",
            "name": name,
            "x": [row["ranks"] for row in rows],
            "y": _column(rows, figure),
            "line": {"color": LINE, "dash": dash, "width": 2},
            "hovertext": [_hover(row, figure) for row in rows],
            "hoverinfo": "text",
        }
        for name, rows, dash in parts
        if len(rows) > 1
    ]


def _hover(row: Row, figure: str) -> str:
    value, low, high = (rounded(row[f"{figure}{end}"]) for end in ("", "_low", "_high"))
    return f"{counted(row['ranks'], 'rank')}: {value:.4g} [{low:.4g} {high:.4g}] {NAMES[figure]}"


def _column(rows: Sequence[Row], figure: str) -> list[float | None]:
    return [rounded(row[figure]) for row in rows]


def _y(row: int) -> str:
    return "y" if row == 1 else f"y{row}"


def _points(one: Predicted, figure: str, row: int, place: Place) -> Trace:
    """Measured points above the curve."""
    known = [point for point in _measured(one) if figure == "samples_per_s" or point.efficiency is not None]
    ends = errors(known) if figure == "efficiency" else error_bars([span_of(pooled(point.rates)) for point in known])
    return {
        "type": "scatter",
        "mode": "markers" if one.rows else "lines+markers",
        "name": "measured",
        "x": [point.ranks for point in known],
        "y": [rounded(_value(point, figure)) for point in known],
        "error_y": ends,
        "marker": {"color": COLORS[3], "size": 9},
        "customdata": [number_of(point, place) for point in known],
        "yaxis": _y(row),
    }


def _value(point: ScalingPoint, figure: str) -> float | None:
    return point.efficiency if figure == "efficiency" else median(pooled(point.rates))
