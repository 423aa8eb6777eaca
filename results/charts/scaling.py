"""Charts of strong and weak scaling: efficiencies with their intervals, and the ideal."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchsuite.results.charts.chart import (
    Chart,
    Numbered,
    Span,
    Table,
    Trace,
    axis,
    error_bars,
    grouped,
    log_axis,
    no_result,
    places,
    rounded,
    scatter,
    table,
)
from benchsuite.results.render.tables import Row
from benchsuite.results.report import scaling as words
from benchsuite.results.scaling.series import KINDS, ScalingPoint, Series, series_among

Place = Mapping[tuple[str, str], int]
"""The number of a point by its session and id."""
NOWHERE: Place = {}
PHRASE = re.compile(r"\S+(?: [\d.]+(?!\S))?")
NOTE = "P(N) / (P(N0) N / N0), P the median of samples/s. Bars: 95 % interval from six repeats on, else the range."


def efficiencies(trials: Sequence[Row], points: Sequence[Numbered]) -> list[Chart]:
    """A chart of each kind of scaling that has a series with an efficiency besides its baseline's."""
    found = series_among(trials, mix_environments=True)
    place = places(points)
    judged = [one for one in found if sum(point.efficiency is not None for point in one.points) > 1]
    return [chart for kind in KINDS for chart in _chart(kind, [one for one in judged if one.kind == kind], place)]


def _chart(kind: str, found: Sequence[Series], place: Place) -> list[Chart]:
    if not found:
        return []
    titles = words.titles(found)
    tables = [_table(series, title) for series, title in zip(found, titles, strict=True)]
    drawn = chart_of(found, short_names(titles), f"{kind.capitalize()} scaling efficiency", place)
    return [replace(drawn, key=f"{kind}-scaling", tables=tables)]


def _table(series: Series, title: str) -> Table:
    """The numbers of ranks of a series, what they say in a sentence, and what they rest on."""
    notes = [words.answer(series), words.basis(series), *words.notes(series)]
    return table(title, words.point_rows(series, title), words.COLUMNS, notes)


def chart_of(found: Sequence[Series], names: Sequence[str], title: str, place: Place = NOWHERE) -> Chart:
    """A line of efficiencies per series, and the ideal."""
    parts = [_traces(series, name, place) for series, name in zip(found, names, strict=True)]
    traces = [trace for part in parts for trace in part]
    groups = [
        (name, [*own, len(traces)])  # with the ideal
        for name, own in grouped([series.example for series in found], list(map(len, parts)))
    ]
    ranks = {point.ranks for series in found for point in series.points}
    ends, dashed = [min(ranks), max(ranks)], {"color": "#888888", "dash": "dash"}
    traces.append(scatter("ideal", ends, [1, 1], "lines", line=dashed))
    layout = {"xaxis": log_axis(ranks), "yaxis": axis("efficiency", rangemode="tozero")}
    return Chart("scaling", title, traces, layout, NOTE, groups=groups)


def short_names(titles: Sequence[str]) -> list[str]:
    """Titles without the phrases that all of them have; whole where one is alone, or they would not stay apart."""
    phrases = [[phrase for part in title.split(" · ") for phrase in _phrases(part)] for title in titles]
    shared = set.intersection(*map(set, phrases)) if len(titles) > 1 else {"weak", "strong"}
    short = [" ".join(phrase for phrase in own if phrase not in shared) for own in phrases]
    return short if all(short) and len({*short}) == len(short) else list(titles)


def _phrases(part: str) -> list[str]:
    """The words of a part of a title, a number with the word before it; a batch such as `8 per rank` as a whole."""
    return [part] if part[:1].isdigit() else PHRASE.findall(part)


def _traces(series: Series, name: str, place: Place) -> list[Trace]:
    """A series with its intervals; what has no rate as crosses on the floor."""
    judged = [point for point in series.points if point.efficiency is not None and point.trials]
    line = measured(name, [(point, efficiency_span(point)) for point in judged], place)
    gone = [point for point in series.points if point.efficiency is None]
    if not gone:
        return [line]
    text = [f"{point.status}: {point.reason or ''}" for point in gone]
    crosses = no_result([point.ranks for point in gone], hovertext=text, meta={"point": number_of(judged[0], place)})
    return [line, crosses]


def measured(
    name: str,
    known: Sequence[tuple[ScalingPoint, Span]],
    place: Place,
    color: str = "",
    behind: bool = False,
    **more: Any,
) -> Trace:
    """Points of a series by ranks, each with a figure between two ends; `behind`: what is drawn behind joins them."""
    return scatter(
        name,
        [point.ranks for point, _ in known],
        [rounded(middle) for _, (_, middle, _) in known],
        "markers" if behind else "lines+markers",
        error_y=error_bars([ends for _, ends in known]),
        customdata=[number_of(point, place) for point, _ in known],
        **({"marker": {"color": color, "size": 9}} if color else {}),
        **more,
    )


def number_of(point: ScalingPoint, place: Place) -> int:
    """The number of a point's first trial in the table of the page."""
    row = point.trials[0]
    return place.get((str(row["session"]), str(row["point_id"])), 0)


def efficiency_span(point: ScalingPoint) -> Span:
    """A point's efficiency between the ends of its interval; the baseline's alone."""
    value, ends = point.efficiency or 0.0, point.bounds
    return value if ends.low is None else ends.low, value, value if ends.high is None else ends.high
