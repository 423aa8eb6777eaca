"""Charts of measured collectives: latency and bandwidth against size, and DDP's step against its bucket size."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.charts.chart import Chart, Trace, axis, error_bars, rounded, scatter, span
from benchsuite.results.render.tables import Row, is_missing
from benchsuite.results.render.words import binary
from benchsuite.results.report.probes import DDP_STEP

SERIES = ("spec.op", "spec.algorithm", "spec.dtype", "spec.backend", "spec.world_size", "spec.nodes", "session")
META = {"of": "comm"}
"""Points of the page's table are trials; these belong to none and are always shown."""
DASHES: Mapping[str, str] = {"overlapped": "solid", "after_backward": "dash"}
MAX_TICKS = 12


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Every chart that points of kind comm have something for."""
    good = [row for row in rows if row["status"] == "ok" and not is_missing(row.get("spec.num_bytes"))]
    collectives = [row for row in good if row.get("spec.op") != DDP_STEP]
    steps = [row for row in good if row.get("spec.op") == DDP_STEP]
    return [*_latency(collectives), *_bandwidth(collectives), *_buckets(steps)]


def _latency(rows: Sequence[Row]) -> list[Chart]:
    """Time of a collective against the size of its array."""
    traces = [_line(name, group, "comm_s", 1e6, (("comm_s_p5", "comm_s_p95"),)) for name, group in series(rows)]
    if not traces:
        return []
    layout = {"xaxis": size_axis(rows, "spec.num_bytes"), "yaxis": axis("us", type="log")}
    note = "Median over samples of the slowest rank; bars: the middle 90 % of samples. Size: the whole array."
    return [Chart("comm-latency", "Latency of collectives against size", traces, layout, note)]


def _bandwidth(rows: Sequence[Row]) -> list[Chart]:
    """What it tells of the hardware, whatever the number of ranks."""
    traces = [_line(name, group, "busbw_bytes_per_s", 1e-9) for name, group in series(rows)]
    if not traces:
        return []
    layout = {"xaxis": size_axis(rows, "spec.num_bytes"), "yaxis": axis("busbw, GB/s", rangemode="tozero")}
    note = "Bus bandwidth as nccl-tests defines it: size over time, x 2(n-1)/n for all_reduce, ..."
    return [Chart("comm-bandwidth", "Bus bandwidth of collectives against size", traces, layout, note)]


def _buckets(rows: Sequence[Row]) -> list[Chart]:
    """DDP's step and its exposed communication, during backward and after it."""
    traces: list[Trace] = []
    for name, group in series(rows):
        dash = DASHES.get(str(group[0].get("spec.algorithm")), "dot")
        for what, figure in (("step", "step_s_p50"), ("exposed communication", "communication_min_s")):
            known = [row for row in group if not is_missing(row.get(figure))]
            if known:
                line = _line(f"{what} {name}", known, figure, 1e3, along="spec.bucket_bytes")
                traces.append({**line, "line": {"dash": dash}})
    if not traces:
        return []
    layout = {"xaxis": size_axis(rows, "spec.bucket_bytes", "bucket size"), "yaxis": axis("ms", rangemode="tozero")}
    note = (
        "Median over steps of the slowest rank. Exposed communication: what backward() takes longer than its "
        "computation, of the rank that waits least in a step: the slowest, which others wait for. The table shows the "
        "same."
    )
    return [Chart("comm-buckets", "DDP's step against bucket size, overlap on and off", traces, layout, note)]


def series(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Points that differ in size alone, each group by what tells it apart, in order of size."""
    apart = [key for key in SERIES if len({str(row.get(key)) for row in rows}) > 1]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key)) for key in SERIES), []).append(row)
    named = []
    for group in groups.values():
        words = [_word(key, group[0].get(key)) for key in apart] or [str(group[0].get("spec.op"))]
        named.append((" ".join(words), sorted(group, key=_size)))
    return named


def _size(row: Row) -> float:
    return float(str(row["spec.bucket_bytes" if row.get("spec.op") == DDP_STEP else "spec.num_bytes"]))


def _word(key: str, value: Any) -> str:
    if key in ("spec.world_size", "spec.nodes"):
        return f"{float(value):g} {'ranks' if key == 'spec.world_size' else 'nodes'}"
    return str(value)


def _line(
    name: str,
    group: Sequence[Row],
    figure: str,
    scale: float,
    ends: Sequence[tuple[str, str]] = (),
    along: str = "spec.num_bytes",
) -> Trace:
    """A figure of a group against its sizes; error bars to the `ends`, where there are any."""
    known = [row for row in group if not is_missing(row.get(figure))]
    sizes = [float(row[along]) for row in known]
    hover = [f"{binary(int(size))} {name}" for size in sizes]
    found = scatter(name, sizes, [rounded(row[figure], scale) for row in known], hovertext=hover, meta=META)
    return found | ({"error_y": error_bars([span(row, figure, *ends) for row in known], scale)} if ends else {})


def size_axis(rows: Sequence[Row], along: str, title: str = "size") -> dict[str, Any]:
    """A logarithmic axis of sizes, told as 64 KiB."""
    sizes = sorted({int(float(row[along])) for row in rows if not is_missing(row.get(along))})
    told = sizes[:: -(-len(sizes) // MAX_TICKS)]
    return axis(title, type="log", tickvals=told, ticktext=[binary(size) for size in told])
