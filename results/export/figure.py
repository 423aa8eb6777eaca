"""Vector figures of scaling for papers, by matplotlib (an optional extra)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchsuite.results.render.plain import plain
from benchsuite.results.scaling.series import ScalingPoint, Series
from benchsuite.results.store.replacing import replacing
from benchsuite.results.store.store import StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "benchsuite",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
"""The same figure gives the same bytes, and its text stays text: a `$` begins no formula."""
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
MARKERS = "osD^vP*X"


def draw_scaling(found: Sequence[Series], titles: Sequence[str], out: Path, format: str) -> None:
    """Efficiency against ranks with its intervals, a line per series, and the ideal.

    Points without a rate are crosses on the floor, and gaps in the line.

    Raises:
        StoreError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StoreError(f"--{format} needs matplotlib ({error}): pip install 'benchsuite[figures]'") from None
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(1.0, color="0.6", linestyle="--", linewidth=1, label="ideal")
        for number, (series, title) in enumerate(zip(found, titles, strict=True)):
            _line(axes, series, plain(title), number)
        _axes(axes, found)
        _legend(figure, axes)
        with replacing(out) as made:
            figure.savefig(made, format=format, metadata=UNDATED[format])


def _line(axes: "Axes", series: Series, title: str, number: int) -> None:
    """One series: what has an efficiency as a line with error bars, what has none as crosses on the floor."""
    color = f"C{number % 10}"
    lost = [point.ranks for point in series.points if point.efficiency is None]
    axes.errorbar(
        [point.ranks for point in series.points],
        [math.nan if point.efficiency is None else point.efficiency for point in series.points],
        yerr=[[_below(point) for point in series.points], [_above(point) for point in series.points]],
        color=color,
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        linewidth=1.2,
        capsize=3,
        label=title,
    )
    if lost:
        axes.plot(lost, [0.0] * len(lost), color=color, marker="x", linestyle="none", clip_on=False, label="no result")


def _below(point: ScalingPoint) -> float:
    low = point.bounds.low
    return 0.0 if low is None or point.efficiency is None else max(0.0, point.efficiency - low)


def _above(point: ScalingPoint) -> float:
    high = point.bounds.high
    return 0.0 if high is None or point.efficiency is None else max(0.0, high - point.efficiency)


def _axes(axes: "Axes", found: Sequence[Series]) -> None:
    ranks = sorted({point.ranks for series in found for point in series.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, labels=[str(count) for count in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("efficiency")
    axes.set_ylim(bottom=0.0)
    axes.grid(axis="y", linewidth=0.4, color="0.85")


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Below the axes, each name once."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    title = "bars: 95 % interval, or range below six repeats"
    figure.legend(unique.values(), unique.keys(), title=title, title_fontsize=7, fontsize=7, loc="outside lower center")
