"""Charts of the choices: a figure of each point as sorted dots, which the page can set against any axis that varies."""

from collections.abc import Mapping, Sequence

from benchsuite.results.charts.chart import (
    Chart,
    Numbered,
    Trace,
    axis,
    error_bars,
    rounded,
    scatter,
    setting,
    span,
    varied_degrees,
)
from benchsuite.results.charts.chart import varied as varied_settings
from benchsuite.results.render.tables import Row, is_missing

FIGURES: Mapping[str, tuple[str, float]] = {
    "samples/s": ("samples_per_s", 1.0),
    "AU": ("au", 1.0),
    "ms per step": ("step_s_mean", 1e3),
    "MB/s": ("io_bytes_per_s", 1e-6),
}
"""Figures by their unit, and what each is multiplied by."""
NOTE = "Median over repeats, the best first; bars: 95 % interval from six repeats on, else the range."
RANKED, UNRANKED = "ranked", "not ranked: disturbed, or no choice"
LOOKS = {RANKED: {"size": 9}, UNRANKED: {"size": 9, "symbol": "circle-open"}}


def choices(points: Sequence[Numbered]) -> list[Chart]:
    """A chart of each figure that two points have."""
    return [chart for unit, (figure, scale) in FIGURES.items() for chart in _dots(points, unit, figure, scale)]


def _dots(points: Sequence[Numbered], unit: str, figure: str, scale: float) -> list[Chart]:
    known = [(number, row) for number, row in points if row["status"] == "ok" and not is_missing(row.get(figure))]
    if len(known) < 2:
        return []
    unranked = [one for one in known if one[1].get("not_ranked")]
    parts = {RANKED: [one for one in known if one not in unranked], UNRANKED: unranked}
    traces = [_trace(name, part, figure, scale) for name, part in parts.items() if part]
    layout = {"xaxis": axis(unit, rangemode="tozero")}
    return [Chart("choices", "The choices", traces, layout, NOTE, choice=unit, bars=True, by_value=True)]


def _trace(name: str, part: Sequence[Numbered], figure: str, scale: float) -> Trace:
    numbers = [number for number, _ in part]
    ends = error_bars([span(row, figure) for _, row in part], scale)
    x = [rounded(row[figure], scale) for _, row in part]
    return scatter(name, x, numbers, "markers", error_x=ends, customdata=numbers, marker=LOOKS[name])


def axes(points: Sequence[Row]) -> dict[str, list[str]]:
    """The value of each point on each axis that varies, by its name without the section it stands in."""
    keys = (*varied_settings(points), *varied_degrees(points))
    found = {key: [_word(row, key) for row in points] for key in keys}
    return {key.removeprefix("spec.").removeprefix("data."): told for key, told in found.items()}


def _word(row: Row, key: str) -> str:
    value = setting(row, key)
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
