"""Charts of the storage knee: utilization against ranks, shared file system against node-local copies."""

from collections.abc import Sequence

from benchsuite.results.charts.chart import COLORS, Chart, Trace, axis, error_bars, log_axis, rounded, scatter, span_of
from benchsuite.results.charts.scaling import Place, number_of
from benchsuite.results.render.tables import is_missing
from benchsuite.results.report.modelled import StorageCurve, StorageKnee
from benchsuite.results.scaling.series import ScalingPoint

SHARED, STAGED, LATER = COLORS[3], COLORS[2], COLORS[4]
UNITS = {"au": "AU", "samples_per_s": "samples/s"}
NOTE = (
    "Points: median over repeats; bars: 95 % interval from six on, else the range. Lines: t_c / max(t_c, t_io), t_c a "
    "step with its input in memory, t_io that of the client or N batch record / B of the shared file system, whichever "
    "is longer."
)


def charts(found: Sequence[StorageKnee], place: Place) -> list[Chart]:
    """A chart of each pair, or of a shared series that has a knee."""
    return [_chart(one, place) for one in found]


def _chart(one: StorageKnee, place: Place) -> Chart:
    figure = "au" if any(_values(point, "au") for point in _points(one)) else "samples_per_s"
    number = number_of(_points(one)[0], place)
    colors = [*zip(one.curves, (SHARED, STAGED, LATER), strict=False)]
    forms = [_form(curve, color, number) for curve, color in colors if curve.au and figure == "au"]
    dots = [_dots(curve, figure, color, place, bool(curve.au)) for curve, color in colors]
    top = max((value for point in _points(one) for value in _values(point, figure)), default=1.0)
    marks = [] if one.knee_ranks is None else [_mark(one.knee_ranks, max(top, 1.0) if figure == "au" else top, number)]
    ranks = {point.ranks for point in _points(one)} | {n for curve in one.curves for n in curve.ranks[-1:]}
    layout = {"xaxis": log_axis(ranks), "yaxis": axis(UNITS[figure], rangemode="tozero")}
    choice = f"{one.title} · {one.curves[0].series.example['session']}"
    return Chart(
        "knee", "The storage knee", [*forms, *dots, *marks], layout, NOTE, [one.title, *one.lines], choice=choice
    )


def _points(one: StorageKnee) -> list[ScalingPoint]:
    return [point for curve in one.curves for point in curve.series.points if point.trials]


def _values(point: ScalingPoint, figure: str) -> list[float]:
    return [float(trial[figure]) for trial in point.trials if not is_missing(trial.get(figure))]


def _form(curve: StorageCurve, color: str, number: int) -> Trace:
    x, y = [rounded(count) for count in curve.ranks], [rounded(value) for value in curve.au]
    line = {"color": color, "width": 1.5, "dash": "dash"}
    return scatter(f"{curve.name}, closed form", x, y, "lines", line=line, meta={"point": number})


def _dots(curve: StorageCurve, figure: str, color: str, place: Place, behind: bool) -> Trace:
    known = [(point, span_of(values)) for point in curve.series.points if (values := _values(point, figure))]
    return scatter(
        curve.name,
        [point.ranks for point, _ in known],
        [rounded(middle) for _, (_, middle, _) in known],
        "markers" if behind else "lines+markers",
        error_y=error_bars([ends for _, ends in known]),
        marker={"color": color, "size": 9},
        customdata=[number_of(point, place) for point, _ in known],
    )


def _mark(knee: float, top: float, number: int) -> Trace:
    line = {"color": "#888888", "dash": "dot", "width": 1.5}
    name = f"knee N* = {knee:.3g} ranks"
    return scatter(name, [rounded(knee)] * 2, [0, rounded(top)], "lines", line=line, meta={"point": number})
