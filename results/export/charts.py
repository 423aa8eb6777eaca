"""Charts as vector figures for papers, a file each, by matplotlib (an optional extra)."""

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.results.charts import page
from benchsuite.results.charts.chart import COLORS, Chart, Trace
from benchsuite.results.render.tables import Row
from benchsuite.results.render.words import plain
from benchsuite.results.report.modelled import NOTHING, Modelled
from benchsuite.results.report.sections import points_of, sections
from benchsuite.results.store.replacing import replacing
from benchsuite.results.store.store import ResultsStore, StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "benchsuite",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": 9,
}
"""A figure gives the same bytes each time, and its text stays text: a `$` begins no formula."""
UNDATED = {"svg": "Date", "pdf": "CreationDate"}
TOLD_IN = {"svg": "Description", "pdf": "Subject"}
"""Where a file tells what draws it again."""
MAX_BARS = 64
MAX_CHOICES = 12
"""Figures of one kind, such as timelines, that are drawn; the page lets choose between more."""
DASHES: Mapping[str, str] = {"solid": "-", "dash": "--", "dot": ":"}
SYMBOLS: Mapping[str, str] = {"x": "x", "diamond": "D", "line-ns-open": "|"}
RGBA = re.compile(r"rgba\((\d+), (\d+), (\d+), ([\d.]+)\)")
LEGEND_COLUMNS, MAX_LINES = 3, 3
TITLE_WIDTH, NOTE_WIDTH, LABEL_WIDTH = 72, 95, 34


def draw_report(
    store: ResultsStore, folder: Path, format: str, modelled: Modelled = NOTHING, origin: str = ""
) -> list[Path]:
    """Each chart of a store's report as FOLDER/KEY.FORMAT; KEY-1, KEY-2 ... where the page lets choose. Their paths.

    Args:
        store: whose charts.
        folder: made where it is missing.
        format: svg or pdf.
        modelled: what models say, which has charts too.
        origin: what draws them again, for the files' metadata.

    Raises:
        StoreError: matplotlib is not installed, nothing can be drawn, or a file cannot be written.
    """
    charts, labels = _charts(store, modelled)
    if not charts:
        raise StoreError(f"store {store.path}: nothing to draw: no chart has a figure")
    return draw_into(folder, format, charts, labels, origin)


def draw_into(
    folder: Path, format: str, charts: Sequence[tuple[str, Chart]], labels: Sequence[str] = (), origin: str = ""
) -> list[Path]:
    """Draw charts as FOLDER/NAME.FORMAT, and return their paths; a missing folder is made.

    `origin`: what draws them again, for the files' metadata.

    Raises:
        StoreError: the folder is a file or named like one, matplotlib is not installed, or a file cannot be written.
    """
    if folder.suffix == f".{format}":
        raise StoreError(f"--{format} {folder}: should be a folder, as each chart is a file; such as {folder.stem}")
    if folder.is_file():
        raise StoreError(f"--{format} {folder}: is a file; allowed: a folder, in which each chart becomes a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [draw(chart, folder / f"{name}.{format}", format, labels, origin) for name, chart in charts]
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error


def _charts(store: ResultsStore, modelled: Modelled) -> tuple[list[tuple[str, Chart]], list[str]]:
    """What there is to draw, by name; and the labels of the points."""
    found = sections(store)
    by_key: dict[str, list[Chart]] = {}
    for chart in itertools.chain.from_iterable(map(_parted, page.charts(store, found, modelled))):
        if chart.cells or any(trace.get("x") for trace in chart.traces):
            by_key.setdefault(chart.key, []).append(chart)
    named = [
        (key if len(charts) == 1 else f"{key}-{number}", chart)
        for key, charts in by_key.items()
        for number, chart in enumerate(charts[:MAX_CHOICES], 1)
    ]
    return named, labels_of([row for _, row in points_of(found)])


def _parted(chart: Chart) -> list[Chart]:
    """A chart with more series than a legend holds: one for each group of them, without that of all."""
    groups = [(name, [chart.traces[place] for place in places]) for name, places in chart.groups[1:]]
    return [replace(chart, choice=name, traces=traces) for name, traces in groups] or [chart]


def labels_of(points: Sequence[Row]) -> list[str]:
    """Each point's label, with its sweep and session where there are several."""
    sweeps = {row["sweep"] for row in points}
    nights = len({(row["sweep"], row["session"]) for row in points}) > len(sweeps)
    words = (
        (row["sweep"] if len(sweeps) > 1 else "", row["label"], row["session"] if nights else "") for row in points
    )
    return [" · ".join(str(word) for word in some if word) for some in words]


def _check_matplotlib(format: str) -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise StoreError(f"--{format} needs matplotlib ({error}): pip install 'benchsuite[figures]'") from None


def draw(chart: Chart, out: Path, format: str, labels: Sequence[str] = (), origin: str = "") -> Path:
    """Draw a chart as a file, and return its path; `labels` are those of the points that its bars name by number.

    Its metadata tell `origin`.

    Raises:
        StoreError: matplotlib is not installed, or the file cannot be written.
    """
    _check_matplotlib(format)
    import matplotlib

    metadata = {UNDATED[format]: None} | ({TOLD_IN[format]: plain(origin)} if origin else {})
    with matplotlib.rc_context(SETTINGS), replacing(out) as made:
        figure_of(chart, labels).savefig(made, format=format, metadata=metadata)
    return out


def figure_of(chart: Chart, labels: Sequence[str]) -> "Figure":
    """A chart as matplotlib draws it; `labels` are those of the points that its bars name by number."""
    from matplotlib.figure import Figure

    several = any(trace.get("yaxis") == "y2" for trace in chart.traces)
    lying = chart.bars or any(trace.get("orientation") == "h" for trace in chart.traces)
    figure = Figure(figsize=(6.4, 5.8 if several else 4.0), layout="constrained")
    axes = list(figure.subplots(1 + several, 1, squeeze=False)[:, 0])
    if chart.cells:
        _heat(figure, axes[0], chart)
    elif lying:
        figure.set_figheight(1.8 + 0.26 * _bars(axes[0], chart, labels))
    else:
        for number, trace in enumerate(chart.traces):
            _trace(axes[trace.get("yaxis") == "y2"], trace, number)
    for number, own in enumerate(axes, 1):
        _axis(own, "x", chart.layout.get("xaxis", {}))
        own.label_outer()
        if not lying:
            _axis(own, "y", chart.layout.get("yaxis" if number == 1 else f"yaxis{number}", {}))
        own.grid(axis="x" if lying else "y", linewidth=0.4, color="0.85")
        own.set_axisbelow(True)
    title = " · ".join(filter(None, [chart.title, chart.choice]))
    axes[0].set_title(_folded(title, TITLE_WIDTH), fontsize=9)
    _legend(figure, axes, chart)
    return figure


def _folded(text: str, width: int) -> str:
    """Fold a text into a few lines, and cut off the rest."""
    return textwrap.fill(plain(text), width, max_lines=MAX_LINES, placeholder="…")


def _color(given: Any, number: int) -> Any:
    """A color as matplotlib takes it; where none is given, the palette's."""
    found = RGBA.fullmatch(given) if isinstance(given, str) else None
    if found:
        return (*(int(part) / 255 for part in found.groups()[:3]), float(found[4]))
    return given or COLORS[number % len(COLORS)]


def _trace(axes: "Axes", trace: Trace, number: int) -> None:
    """A line with its error bars, points, a shaded band, or bars that stand."""
    name, x = plain(str(trace.get("name") or "")), trace["x"]
    y = [math.nan if value is None else value for value in trace["y"]]
    line, marker = trace.get("line") or {}, trace.get("marker") or {}
    color = _color(line.get("color") or marker.get("color"), number)
    if trace["type"] == "bar":
        axes.bar(x, y, color=color, label=name)
    elif trace.get("fill"):
        axes.fill(x, y, color=_color(trace.get("fillcolor"), number), linewidth=0, label=name)
    else:
        mode = trace.get("mode", "lines+markers")
        ends = [[value or 0.0 for value in error] for error in _errors(trace, "error_y")] or None
        axes.errorbar(
            x,
            y,
            yerr=ends,
            color=color,
            linestyle=DASHES.get(line.get("dash", "solid"), "-") if "lines" in mode else "none",
            marker=SYMBOLS.get(marker.get("symbol", ""), "o") if "markers" in mode else "",
            markersize=5,
            linewidth=1.2,
            capsize=3,
            clip_on=marker.get("symbol") != "x",
            label=name,
        )


def _errors(trace: Trace, name: str) -> list[list[float | None]]:
    """The lengths of error bars below and above; empty without any."""
    error = trace.get(name) or {}
    return [error[end] for end in ("arrayminus", "array")] if error else []


def _bars(axes: "Axes", chart: Chart, labels: Sequence[str]) -> int:
    """Draw horizontal bars, stacked unless they say where they begin, the first on top; return how many rows."""
    known = {number: value for trace in chart.traces for number, value in zip(trace["y"], trace["x"], strict=True)}
    numbers = sorted(known, key=lambda number: -known[number] if chart.by_value else float(number))[:MAX_BARS]
    place = {number: at for at, number in enumerate(numbers)}
    ends = [0.0] * len(numbers)
    for count, trace in enumerate(chart.traces):
        marker, name = trace.get("marker") or {}, plain(str(trace.get("name") or ""))
        color = _color(marker.get("color"), count)
        kept = [at for at, value in enumerate(trace["y"]) if value in place]
        x, y = [trace["x"][at] for at in kept], [place[trace["y"][at]] for at in kept]
        if trace["type"] != "bar":
            symbol = SYMBOLS.get(marker.get("symbol", ""), "o")
            lengths = [[error[at] or 0.0 for at in kept] for error in _errors(trace, "error_x")]
            look = {"marker": symbol, "color": color, "markersize": 7, "label": name}
            axes.errorbar(x, y, xerr=lengths or None, linestyle="none", linewidth=1.2, capsize=3, **look)
            continue
        left = [trace["base"][at] for at in kept] if "base" in trace else [ends[at] for at in y]
        drawn = axes.barh(y, x, left=left, height=0.7, color=color, label=name)
        if "text" in trace:
            axes.bar_label(drawn, [trace["text"][at] for at in kept], label_type="center", fontsize=6)
        for at, begin, size in zip(y, left, x, strict=True):
            ends[at] = begin + size
    names = [labels[number] if chart.bars else str(number) for number in numbers]
    axes.set_yticks(range(len(numbers)), [_folded(name, LABEL_WIDTH) for name in names], fontsize=7)
    axes.set_ylim(len(numbers) - 0.4, -0.6)
    axes.set_ylabel("" if chart.bars else chart.layout["yaxis"]["title"]["text"])
    return len(numbers)


def _heat(figure: "Figure", axes: "Axes", chart: Chart) -> None:
    """Medians of the points of each cell."""
    trace = chart.traces[0]
    columns, rows = sorted({cell[0] for cell in chart.cells}), sorted({cell[1] for cell in chart.cells})
    found: dict[tuple[int, int], list[float]] = {}
    for column, row, value, _ in chart.cells:
        found.setdefault((rows.index(row), columns.index(column)), []).append(value)
    grid = np.full((len(rows), len(columns)), np.nan)
    for place, values in found.items():
        grid[place] = median(values)
    mesh = axes.pcolormesh(grid, cmap="viridis", vmin=trace.get("zmin"), vmax=trace.get("zmax"), edgecolors="white")
    shades: Any = mesh.norm(grid)
    for y, x in found:
        ink = "white" if shades[y, x] < 0.6 else "black"
        axes.text(x + 0.5, y + 0.5, f"{grid[y, x]:.3g}", ha="center", va="center", color=ink)
    axes.set_xticks(np.arange(len(columns)) + 0.5, [plain(name) for name in columns])
    axes.set_yticks(np.arange(len(rows)) + 0.5, [plain(name) for name in rows])
    figure.colorbar(mesh, label=trace["colorbar"]["title"]["text"])


def _axis(axes: "Axes", which: str, asked: Mapping[str, Any]) -> None:
    """Title, scale, ticks and ends as the page has them."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{which}label": plain(asked.get("title", {}).get("text", ""))})
    if asked.get("type") == "log":
        axes.set(**{f"{which}scale": "log"})
        if "tickvals" in asked:
            axis = axes.xaxis if which == "x" else axes.yaxis
            axis.set_ticks(asked["tickvals"], labels=asked["ticktext"])
            axis.set_minor_locator(NullLocator())
        if "range" in asked:
            axes.set(**{f"{which}lim": [10**end for end in asked["range"]]})
    elif asked.get("rangemode") == "tozero":
        (axes.set_xlim if which == "x" else axes.set_ylim)(0.0, None)


def _legend(figure: "Figure", axes: Sequence["Axes"], chart: Chart) -> None:
    """Below the axes, each name once; with what error bars mean."""
    found: dict[str, Any] = {}
    for own in axes:
        handles, names = own.get_legend_handles_labels()
        found |= {name: handle for name, handle in zip(names, handles, strict=True) if name not in found}
    named = {name: handle for name, handle in found.items() if name and not name.startswith("_")}
    told = any("error_y" in trace or "error_x" in trace for trace in chart.traces)
    if len(named) > 1 or told:
        title = _folded(chart.note, NOTE_WIDTH) if told else None
        figure.legend(
            named.values(),
            [_folded(name, NOTE_WIDTH // LEGEND_COLUMNS) for name in named],
            title=title,
            title_fontsize=6,
            fontsize=7,
            ncols=min(LEGEND_COLUMNS, len(named)),
            loc="outside lower center",
        )
