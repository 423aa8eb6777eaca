"""Charts of reading: formats by loaders, reads by size, and when staging pays."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.charts.chart import Chart, Numbered, Trace, axis, rounded, scatter
from benchsuite.results.render.tables import Row, is_above_one, is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.report import io_profile as ioprofile
from benchsuite.results.report.summary import ABOVE_ONE
from benchsuite.results.scaling.staging import StagingPair, in_words, pairs

FORMAT, LOADER, SOURCE = "spec.data.format", "spec.data.loader", "spec.data.source"


def formats_by_loaders(points: Sequence[Numbered]) -> list[Chart]:
    """AU (or, where there is none, samples per second) of each format with each loader, of points that read files."""
    read = [
        (number, row) for number, row in points if row.get(FORMAT) and row.get(LOADER) and row.get(SOURCE) == "storage"
    ]
    rated = any(not is_missing(row.get("au")) for _, row in read)
    figure, unit = ("au", "AU") if rated else ("samples_per_s", "samples/s")
    cells = [
        (str(row[FORMAT]), str(row[LOADER]), value, number)
        for number, row in read
        if not is_above_one(row) and (value := rounded(row.get(figure))) is not None
    ]
    if len({cell[0] for cell in cells}) < 2 and len({cell[1] for cell in cells}) < 2:
        return []
    trace: Trace = {"type": "heatmap", "colorscale": "Viridis", "colorbar": {"title": {"text": unit}}}
    if rated:
        trace |= {"zmin": 0, "zmax": 1}
    layout = {"xaxis": axis("format", type="category"), "yaxis": axis("loader", type="category")}
    note = f"{unit}: median of the points shown; narrow them down above."
    left_out = sum(is_above_one(row) for _, row in read)
    note += f" Left out: {counted(left_out, 'point')} with {ABOVE_ONE}." if left_out else ""
    return [Chart("heat", f"{unit} by format and loader", [trace], layout, note, cells=cells)]


def io_profile(profile: Mapping[str, Any], number: int, row: Row) -> list[Chart]:
    """Reads by their size, and the whole profile in words."""
    sizes = profile["read_sizes"]
    names = [ioprofile.below(int(bound)) if bound.isdigit() else bound for bound in sizes]
    bars: Trace = {"type": "bar", "x": names, "y": [*sizes.values()], "meta": {"point": number}, "name": "reads"}
    layout = {"xaxis": axis("bytes asked for", type="category"), "yaxis": axis("reads"), "height": 260}
    choice = f"{row['label']} · {row['sweep']} · {row['session']}"
    return [Chart("io", "I/O profile", [bars], layout, lines=ioprofile.lines(profile), choice=choice)]


def staging(points: Sequence[Numbered]) -> list[Chart]:
    """Time against epochs with staging and without, for each pair of points that differ in nothing else."""
    numbers = {id(row): number for number, row in points}
    return [_pays(pair, numbers[id(pair.staged)]) for pair in pairs([row for _, row in points])]


def _pays(pair: StagingPair, number: int) -> Chart:
    stage_s, even = pair.stage_s, pair.break_even_epochs
    last = max(4, round(2 * even + 1)) if even is not None and even < 1000 else 4
    meta = {"point": number}
    traces = [
        scatter(name, [0, last], [rounded(start), rounded(end)], "lines", line={"dash": dash}, meta=meta)
        for name, start, end, dash in (
            ("unstaged", 0.0, last * pair.unstaged_epoch_s, "dash"),
            ("staged", stage_s or 0.0, (stage_s or 0.0) + last * pair.epoch_s, "solid"),
        )
    ]
    if even is not None and even <= last:
        x, y, marker = [rounded(even)], [rounded(even * pair.unstaged_epoch_s)], {"size": 11, "symbol": "diamond"}
        traces.append(scatter(f"pays after {even:.1f} epochs", x, y, "markers", marker=marker, meta=meta))
    layout = {"xaxis": axis("epochs", rangemode="tozero"), "yaxis": axis("s since the start", rangemode="tozero")}
    choice = f"{pair.staged['label']} · {pair.staged['session']}"
    return Chart("staging", "When staging pays", traces, layout, lines=[in_words(pair)], choice=choice)
