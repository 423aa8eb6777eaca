"""Charts of operators: their classes' shares of FLOPs and of time, and steps below the roofs of their devices."""

import math
from collections.abc import Sequence

from benchsuite.results.charts.chart import Chart, Numbered, Trace, axis, log_axis, rounded, scatter, stacked, table
from benchsuite.results.render import operators as words
from benchsuite.results.render.tables import is_missing

CLASS_COLORS = {"contraction": "#0072B2", "normalisation": "#E69F00", "element-wise": "#009E73", "other": "#999999"}
ROOF = "#888888"
NOTE = "Share of the operators' own time on the device. Contractions have nearly all FLOPs, see the table."
ROOF_NOTE = (
    "A step's FLOPs over its operator-level bytes, and the FLOP/s of a device; lines: min(peak, bandwidth x intensity)."
)


def classes(points: Sequence[Numbered]) -> list[Chart]:
    """How the operators' time divides into classes, a bar per point; FLOPs and the roofline's numbers below."""
    found = words.counted([row for _, row in points])
    if not found:
        return []
    columns = {word: f"{name}_time_fraction" for name, word in words.CLASSES.items()}
    traces = [
        {**one, "marker": {"color": CLASS_COLORS[one["name"]]}} for one in stacked(_counted(points), columns, 100.0)
    ]
    layout = {"xaxis": axis("% of the operators' time", range=[0, 100]), "barmode": "stack"}
    told = [table("Operators", found, words.COLUMNS, [words.LEGEND, *words.sources(found)])]
    return [Chart("operators", "Operator classes", traces, layout, NOTE, bars=True, tables=told)]


def roofline(points: Sequence[Numbered]) -> list[Chart]:
    """The points that have a roof, each below it."""
    known = [(number, row) for number, row in _counted(points) if not is_missing(row.get("roof_flops_per_s"))]
    if not known:
        return []
    dots: list[Trace] = [
        scatter(
            str(row["label"]),
            [rounded(row["arithmetic_intensity"])],
            [rounded(row["attained_flops_per_s"], 1e-12)],
            "markers",
            customdata=[number],
        )
        for number, row in known
    ]
    roofs: dict[str, Trace] = {}
    for number, row in known:
        bandwidth = row["roof_flops_per_s"] / min(row["arithmetic_intensity"], row["ridge_intensity"])
        source = str(row["roof_source"])
        line = roof(source, row["ridge_intensity"] * bandwidth, bandwidth)
        roofs.setdefault(source, {**line, "meta": {"point": number}})
    return [drawn([*roofs.values(), *dots], ROOF_NOTE)]


def roof(name: str, peak_flops: float, bytes_per_s: float) -> Trace:
    """The roof of a device from far left of its ridge, where vectors are added, to its right: FLOPs a byte, TFLOP/s."""
    ridge = peak_flops / bytes_per_s
    x = [ridge / 3000, ridge, ridge * 30]
    y = [min(peak_flops, intensity * bytes_per_s) * 1e-12 for intensity in x]
    return scatter(name, [rounded(one) for one in x], [rounded(one) for one in y], "lines", line={"color": ROOF})


def drawn(traces: Sequence[Trace], note: str) -> Chart:
    """Roofs and what lies below them, on logarithmic axes."""
    intensities, rates = ([value for trace in traces for value in trace[along]] for along in ("x", "y"))
    layout = {"xaxis": log_axis(_decades(intensities), "FLOPs a byte"), "yaxis": log_axis(_decades(rates), "TFLOP/s")}
    return Chart("roofline", "Roofline", traces, layout, note)


def _decades(values: Sequence[float]) -> list[float]:
    """The powers of ten from below the least to above the largest of positive values."""
    ends = [function(math.log10(end(values))) for function, end in ((math.floor, min), (math.ceil, max))]
    return [10.0**power for power in range(ends[0], ends[1] + 1)]


def _counted(points: Sequence[Numbered]) -> list[Numbered]:
    return [(number, row) for number, row in points if words.counted([row])]
