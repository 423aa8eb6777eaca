"""Charts of the step: its parts, its timeline on each rank, its time against bucket size, and the memory it takes."""

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

from benchsuite.results.charts.chart import (
    PART_COLORS,
    Chart,
    Numbered,
    Trace,
    axis,
    line,
    lines,
    log_axis,
    lying_bars,
    rounded,
    scatter,
    stacked,
)
from benchsuite.results.render.tables import Row, is_missing
from benchsuite.results.report.trace import PARTS as PART_EVENTS
from benchsuite.results.report.trace import STEPS, trace

BUCKET = "spec.bucket_cap_mb"
MAX_RANKS = 64
"""Ranks that a timeline shows."""
HELD = ("weights", "gradients", "optimizer", "activations")
PEAKS = {"peak_memory_bytes": ("peak of a rank", "line-ns-open"), "host_memory_bytes": ("host, all ranks", "diamond")}
MEMORY_NOTE = (
    "Bars: bytes of tensors that the largest rank holds, activations at their most. Peak of a rank: on a GPU the most "
    "that PyTorch's allocator had allocated at one time, without what it only reserved; on a CPU the largest resident "
    "set (RSS), with interpreter and libraries, so far above the bars for small models. Host: all ranks and their "
    "workers, shared pages split between those that share them (PSS)."
)
Event = Mapping[str, Any]


def breakdown(points: Sequence[Numbered]) -> list[Chart]:
    """What a step is made of, a bar per point."""
    traces = stacked(points, {part: f"{part}_s" for part in PART_COLORS}, 1e3)
    for found in traces:
        found["marker"] = {"color": PART_COLORS[found["name"]]}
    layout = {"xaxis": axis("ms per step"), "barmode": "stack"}
    note = (
        "Mean of the slowest rank, of the repeat with the median step; communication: what computation does not hide."
    )
    return [Chart("step", "What a step is made of", traces, layout, note, bars=True)] if traces else []


def memory(points: Sequence[Numbered]) -> list[Chart]:
    """What the largest rank holds, with its peak, and what the host holds."""
    traces = stacked(points, {name: f"{name}_bytes" for name in HELD}, 1e-9)
    for key, (name, symbol) in PEAKS.items():
        known = [(number, row[key]) for number, row in points if not is_missing(row.get(key))]
        if known:
            numbers = [number for number, _ in known]
            marker = {"symbol": symbol, "size": 11, "line": {"width": 3 if symbol.endswith("open") else 0}}
            held = [rounded(size, 1e-9) for _, size in known]
            traces.append(scatter(name, held, numbers, "markers", marker=marker, customdata=numbers))
    layout = {"xaxis": axis("GB", rangemode="tozero"), "barmode": "stack"}
    return [Chart("memory", "Memory", traces, layout, MEMORY_NOTE, bars=True)] if traces else []


def buckets(points: Sequence[Numbered]) -> list[Chart]:
    """Step and exposed communication against DDP's bucket size, where it varies."""
    sizes = {float(row[BUCKET]) for _, row in points if not is_missing(row.get(BUCKET))}
    if len(sizes) < 2:
        return []
    traces = []
    for name, group in lines(points, BUCKET, ()):
        for figure, part, dash in (("step_s_mean", "step", "solid"), ("communication_s", "communication", "dot")):
            found = line(f"{name} {part}".strip(), group, BUCKET, figure, 1e3)
            traces += [{**found, "line": {"dash": dash}}] if found else []
    layout = {"xaxis": log_axis(sizes, "bucket_cap_mb"), "yaxis": axis("ms per step", rangemode="tozero")}
    return [Chart("buckets", "Latency against bucket size", traces, layout)] if traces else []


def timeline(samples: Mapping[str, Any], number: int, row: Row) -> list[Chart]:
    """One step of a trial on each rank: that of median length among its loader's."""
    events = [event for event in trace(samples)["traceEvents"] if event["ph"] == "X" and event["pid"] < MAX_RANKS]
    steps = _median_step(samples, [event for event in events if event["tid"] == STEPS])
    if not steps:
        return []
    parts = [event for event in events if event["tid"] == PART_EVENTS and _within(event, steps.get(event["pid"]))]
    begin, names = min(step["ts"] for step in steps.values()), dict.fromkeys(part["name"] for part in parts)
    traces = [_slices(name, [part for part in parts if part["name"] == name], begin, number) for name in names]
    layout = {
        "xaxis": axis("ms"),
        "yaxis": {"autorange": "reversed", "type": "category", "title": {"text": "rank"}},
        "barmode": "overlay",
        "height": 150 + 26 * len(steps),
    }
    some = f" The first {MAX_RANKS} ranks." if len(samples["ranks"]) > MAX_RANKS else ""
    note = f"The loader's step of median length, from the raw samples; each rank by its own clock.{some}"
    choice = f"{row['label']} · {row['sweep']} · {row['session']}"
    return [Chart("timeline", "A step on each rank", traces, layout, note, choice=choice)]


def _median_step(samples: Mapping[str, Any], steps: Sequence[Event]) -> dict[int, Event]:
    """The step of each rank, of the block and number whose slowest rank is the median one."""
    by_place: dict[tuple[int, str], dict[int, Event]] = {}
    for step in steps:
        by_place.setdefault((step["args"]["block"], step["name"]), {})[step["pid"]] = step
    kinds = [block["kind"] for block in next((rank["blocks"] for rank in samples["ranks"] if rank["blocks"]), ())]
    loaded = {place: found for place, found in by_place.items() if kinds[place[0]] == "loader"} or by_place
    if not loaded:
        return {}
    slowest = {place: max(step["dur"] for step in found.values()) for place, found in loaded.items()}
    median = median_high(slowest.values())
    return loaded[next(place for place, length in slowest.items() if length == median)]


def _within(part: Event, step: Event | None) -> bool:
    return step is not None and step["ts"] <= part["ts"] < step["ts"] + step["dur"]


def _slices(name: str, parts: Sequence[Event], begin: float, number: int) -> Trace:
    return lying_bars(
        name,
        [rounded(part["dur"], 1e-3) for part in parts],
        [str(part["pid"]) for part in parts],
        base=[rounded(part["ts"] - begin, 1e-3) for part in parts],
        marker={"color": PART_COLORS.get(name, "#999999")},
        meta={"point": number},
    )
