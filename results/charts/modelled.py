"""Charts of what models say beside the measurements: predictions, the storage knee, schedules of pipelines."""

from collections.abc import Mapping, Sequence

from benchsuite.results.charts.chart import (
    COLORS,
    Chart,
    Trace,
    axis,
    log_axis,
    lying_bars,
    rounded,
    scatter,
    span_of,
    table,
)
from benchsuite.results.charts.scaling import Place, efficiency_span, measured, number_of
from benchsuite.results.render.tables import Row, is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.report.markdown import PREDICTED
from benchsuite.results.report.modelled import PipelineStep, Predicted, Slot, StorageCurve, StorageKnee
from benchsuite.results.scaling.efficiency import pooled
from benchsuite.results.scaling.series import ScalingPoint

SHADE, LINE = "rgba(128, 150, 175, 0.32)", "#2F8FD0"
"""Seen on white and on black."""
UNITS = {"samples_per_s": "samples/s", "efficiency": "efficiency", "au": "AU"}
AXES = {"samples_per_s": "y", "efficiency": "y2"}
"""What is predicted, and on which axis it is drawn: throughput above, efficiency below."""
HEIGHT = 560
PREDICTED_NOTE = (
    "Points: median over repeats; bars: 95 % interval from six repeats on, else the range. Line: the fitted model, "
    "dashed beyond the largest scale measured; shaded: its 90 % interval."
)


def predictions(found: Sequence[Predicted], place: Place, left_out: str = "") -> list[Chart]:
    """A chart of each series that has a measured point: throughput above, efficiency below.

    `left_out`: what else there is, told with each.
    """
    note = f"{PREDICTED_NOTE} {left_out}".strip()
    return [_prediction(one, known, place, note) for one in found if (known := _measured(one.series.points))]


def _measured(points: Sequence[ScalingPoint]) -> list[ScalingPoint]:
    return [point for point in points if point.trials]


def _prediction(one: Predicted, points: Sequence[ScalingPoint], place: Place, note: str) -> Chart:
    traces = [
        trace
        for figure, y in AXES.items()
        for trace in (*_curve(one, points, figure, y, place), _dots_of(one, points, figure, y, place))
    ]
    ranks = {point.ranks for point in points} | {int(row["ranks"]) for row in one.rows}
    layout = {
        "xaxis": log_axis(one.ticks) | {"range": log_axis(ranks)["range"], "anchor": "y2"},
        "yaxis": axis(UNITS["samples_per_s"], rangemode="tozero", domain=[0.54, 1.0]),
        "yaxis2": axis(UNITS["efficiency"], rangemode="tozero", domain=[0.0, 0.46]),
        "height": HEIGHT,
    }
    notes = [*([f"no prediction: {one.problem}"] if one.problem else []), *one.lines]
    tables = [table(one.title, [row for row in one.rows if row["ranks"] in one.ticks], PREDICTED, notes)]
    choice = f"{one.title} · {one.series.example['session']}"
    return Chart("predicted", "Predicted behind measured", traces, layout, note, choice=choice, tables=tables)


def _curve(one: Predicted, points: Sequence[ScalingPoint], figure: str, y: str, place: Place) -> list[Trace]:
    """The shaded interval, the curve as far as was measured, and beyond."""
    if not one.rows:
        return []
    most, meta = max(point.ranks for point in points), {"point": number_of(points[0], place)}
    ranks = [row["ranks"] for row in one.rows]
    ends = [*_column(one.rows, f"{figure}_high"), *reversed(_column(one.rows, f"{figure}_low"))]
    look = {"fill": "toself", "fillcolor": SHADE, "line": {"width": 0}, "hoverinfo": "skip"}
    shade = scatter("90 % interval", [*ranks, *reversed(ranks)], ends, "lines", meta=meta, yaxis=y, **look)
    parts = (
        ("fitted", [row for row in one.rows if row["ranks"] <= most], "solid"),
        ("predicted", [row for row in one.rows if row["ranks"] >= most], "dash"),
    )
    lines = [
        scatter(
            name,
            [row["ranks"] for row in rows],
            _column(rows, figure),
            "lines",
            line={"color": LINE, "dash": dash, "width": 2},
            hovertext=[_hover(row, figure) for row in rows],
            hoverinfo="text",
            meta=meta,
            yaxis=y,
        )
        for name, rows, dash in parts
        if len(rows) > 1
    ]
    return [shade, *lines]


def _column(rows: Sequence[Row], figure: str) -> list[float | None]:
    return [rounded(row[figure]) for row in rows]


def _hover(row: Row, figure: str) -> str:
    value, low, high = (rounded(row[f"{figure}{end}"]) for end in ("", "_low", "_high"))
    return f"{counted(row['ranks'], 'rank')}: {value:.4g} [{low:.4g} {high:.4g}] {UNITS[figure]}"


def _dots_of(one: Predicted, points: Sequence[ScalingPoint], figure: str, y: str, place: Place) -> Trace:
    """Measured points above the curve."""
    if figure == "efficiency":
        known = [(point, efficiency_span(point)) for point in points if point.efficiency is not None]
    else:
        known = [(point, span_of(pooled(point.rates))) for point in points]
    return measured("measured", known, place, COLORS[3], behind=bool(one.rows), yaxis=y)


SHARED, STAGED, LATER = COLORS[3], COLORS[2], COLORS[4]
KNEE_NOTE = (
    "Points: median over repeats; bars: 95 % interval from six on, else the range. Lines: as predicted, with what the "
    "shared file system or the client gives."
)


def knees(found: Sequence[StorageKnee], place: Place) -> list[Chart]:
    """A chart of utilization against ranks, shared file system and node-local copies, or of a shared series' knee."""
    return [_knee(one, place) for one in found]


def _knee(one: StorageKnee, place: Place) -> Chart:
    points = [point for curve in one.curves for point in _measured(curve.series.points)]
    figure = "au" if any(_values(point, "au") for point in points) else "samples_per_s"
    meta = {"point": number_of(points[0], place)}
    colors = [*zip(one.curves, (SHARED, STAGED, LATER), strict=False)]
    forms = [_form(curve, color, meta) for curve, color in colors if curve.au and figure == "au"]
    dots = [_dots(curve, figure, color, place) for curve, color in colors]
    top = max((value for point in points for value in _values(point, figure)), default=1.0)
    marks = []
    if one.knee_ranks is not None:
        look = {"color": "#888888", "dash": "dot", "width": 1.5}
        ends = [0, rounded(max(top, 1.0) if figure == "au" else top)]
        name = f"knee at {one.knee_ranks:.3g} ranks"
        marks = [scatter(name, [rounded(one.knee_ranks)] * 2, ends, "lines", line=look, meta=meta)]
    ranks = {point.ranks for point in points} | {n for curve in one.curves for n in curve.ranks[-1:]}
    layout = {"xaxis": log_axis(ranks), "yaxis": axis(UNITS[figure], rangemode="tozero")}
    choice = f"{one.title} · {one.curves[0].series.example['session']}"
    traces, told = [*forms, *dots, *marks], [one.title, *one.lines]
    return Chart("knee", "The storage knee", traces, layout, KNEE_NOTE, told, choice=choice)


def _values(point: ScalingPoint, figure: str) -> list[float]:
    return [float(trial[figure]) for trial in point.trials if not is_missing(trial.get(figure))]


def _form(curve: StorageCurve, color: str, meta: Mapping[str, int]) -> Trace:
    x, y = [rounded(count) for count in curve.ranks], [rounded(value) for value in curve.au]
    look = {"color": color, "width": 1.5, "dash": "dash"}
    return scatter(f"{curve.name}, predicted", x, y, "lines", line=look, meta=meta)


def _dots(curve: StorageCurve, figure: str, color: str, place: Place) -> Trace:
    known = [(point, span_of(values)) for point in curve.series.points if (values := _values(point, figure))]
    return measured(curve.name, known, place, color, behind=bool(curve.au))


KINDS: Mapping[str, tuple[str, str]] = {
    "F": ("forward", "0, 114, 178"),
    "B": ("backward", "86, 180, 233"),
    "W": ("weight gradients", "0, 158, 115"),
}
"""Names and colours (red, green, blue)."""
LATER_CHUNK = 0.5
"""Opacity of chunks after the first."""
MAX_SLOTS = 1200
"""Pieces of work up to which a schedule is drawn."""
PIPELINE_NOTE = "One step; numbers are microbatches, gaps are bubbles. Paler: a later chunk of the same stage."
OF_NO_POINT = {"of": "schedule"}


def pipelines(found: Sequence[PipelineStep], place: Place, left_out: str = "") -> list[Chart]:
    """A chart of what each stage of a pipeline does when in one step; `left_out`: what else there is, told in each."""
    return [_pipeline(step, place, f"{PIPELINE_NOTE} {left_out}".strip()) for step in found]


def _pipeline(step: PipelineStep, place: Place, note: str) -> Chart:
    own = (step.session, step.point_id)
    meta = OF_NO_POINT if None in own else {"point": place[own]}  # type: ignore[index]
    drawn, lines = step.slots, [step.title, *step.lines]
    if len(drawn) > MAX_SLOTS:
        drawn, lines = (), [*lines, f"{len(drawn)} pieces of work: more than the {MAX_SLOTS} that are drawn"]
    stages = sorted({slot.stage for slot in drawn})
    longest = max((slot.end_s for slot in drawn), default=0.0)
    scale, unit = (1e3, "ms") if step.timed else (1.0, "units of time")
    # kinds in the order of the legend, each with its chunks
    names = sorted({(slot.kind, slot.chunk) for slot in drawn}, key=lambda name: ([*KINDS].index(name[0]), name[1]))
    traces = [_work(name, [s for s in drawn if (s.kind, s.chunk) == name], meta, scale) for name in names]
    layout = {
        "xaxis": axis(unit, range=[0, rounded(longest, scale)]),
        "yaxis": axis("stage", tickvals=stages, range=[len(stages) - 0.4, -0.6], showgrid=False),
        "barmode": "overlay",
        "bargap": 0.12,
        "margin": {"t": 34},
        "height": 170 + 34 * max(len(stages), 1),
        "uniformtext": {"minsize": 7, "mode": "hide"},
    }
    empty: list[Trace] = [{"type": "scatter", "x": [], "y": [], "meta": meta}]
    return Chart("pipeline", "Pipeline schedules", traces or empty, layout, note, lines, choice=step.title)


def _work(name: tuple[str, int], slots: Sequence[Slot], meta: Mapping[str, object], scale: float) -> Trace:
    kind, chunk = name
    word, color = KINDS[kind]
    return lying_bars(
        word if chunk == 0 else f"{word}, chunk {chunk + 1}",
        [rounded(slot.end_s - slot.start_s, scale) for slot in slots],
        [slot.stage for slot in slots],
        base=[rounded(slot.start_s, scale) for slot in slots],
        text=[str(slot.microbatch) for slot in slots],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
        hovertext=[f"stage {slot.stage}: {kind} of microbatch {slot.microbatch}" for slot in slots],
        marker={"color": f"rgba({color}, {1 if chunk == 0 else LATER_CHUNK})"},
        meta=meta,
    )
