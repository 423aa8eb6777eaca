"""Charts of what devices say of themselves: energy, memory, busy, held back, NVLink; and a trial by seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.charts.chart import Chart, Numbered, Trace, axis, error_bars, rounded, scatter, span
from benchsuite.results.render.device_columns import card_bytes
from benchsuite.results.render.tables import Row, is_missing, is_number
from benchsuite.results.store.shapes import devices_of

Seen = Mapping[str, tuple[str, str]]
"""Figures with their names and marks."""
MEMORY: Seen = {
    "peak_memory_bytes": ("tensors, at most", "circle"),
    "reserved_memory_bytes": ("reserved by PyTorch, at most", "diamond"),
    "device_memory_bytes": ("in use at the end, by NVML", "line-ns-open"),
}
SHARES: Seen = {
    "gpu_busy_fraction": ("a kernel runs (mean of ranks)", "circle"),
    "power_capped_fraction": ("held back by the power limit (worst device)", "diamond"),
    "too_hot_fraction": ("held back for heat (worst device)", "x"),
}
MEMORY_NOTE = (
    "Of the rank that takes most, as a share of the card's memory. Tensors: what PyTorch's allocator had handed out; "
    "reserved: what it held; NVML: beyond what was in use before, libraries' included. None where others freed memory."
)
OVER_TIME = {
    "power_w": ("power", "W", 1.0),
    "sm_mhz": ("clock", "MHz", 1.0),
    "temperature_c": ("temperature", "°C", 1.0),
    "busy_fraction": ("busy", "% of the last second in which a kernel ran", 100.0),
}
OVER_NOTE = "Read once a second by the node's agent, from launch to end; shaded: first counted step to last."
SHADE = "rgba(128, 128, 128, 0.2)"
UUID_LENGTH = 12
WHOLE = 102
"""Per cent at which an axis of shares ends, with room for a mark at 100."""


def charts(points: Sequence[Numbered]) -> list[Chart]:
    """What devices said over the counted steps of each point; nothing of points without a device that tells."""
    memory = [(number, _of_card(row)) for number, row in points]
    return [
        *_dots("energy", "Energy per 1,000 samples", points, {"energy_j_per_sample": ("energy", "circle")}, "J", 1e3),
        *_dots("device-memory", "Peak memory against the card's", memory, MEMORY, "% of the card's", 100, MEMORY_NOTE),
        *_dots("device-shares", "Devices busy and held back", points, SHARES, "% of the counted steps", 100),
        *_dots("nvlink", "NVLink", points, {"nvlink_bytes_per_s": ("busiest device", "circle")}, "GB/s", 1e-9),
    ]


def _of_card(row: Row) -> Row:
    """A row with its memory, and the ends over repeats, as shares of the card's; nothing where that is unknown."""
    card = card_bytes(row)
    names = [f"{name}{end}" for name in MEMORY for end in ("", "_min", "_max", "_low", "_high")]
    known = {name: row[name] for name in names if not is_missing(row.get(name))}
    return {} if card is None else {name: value / card for name, value in known.items()}


def _dots(
    key: str, title: str, points: Sequence[Numbered], seen: Seen, unit: str, scale: float, note: str = ""
) -> list[Chart]:
    """Dots of some figures, a row for each point that has one; none where no point has."""
    traces = []
    for figure, (name, symbol) in seen.items():
        known = [(number, row) for number, row in points if not is_missing(row.get(figure))]
        if known:
            numbers = [number for number, _ in known]
            spans = [span(row, figure) for _, row in known]
            marker = {"symbol": symbol, "size": 10, "line": {"width": 3 if symbol.endswith("open") else 0}}
            values = [rounded(middle, scale) for _, middle, _ in spans]
            errors = error_bars(spans, scale)
            traces.append(scatter(name, values, numbers, "markers", marker=marker, error_x=errors, customdata=numbers))
    whole = {"range": [0, WHOLE]} if unit.startswith("%") else {}
    layout = {"xaxis": axis(unit, rangemode="tozero", **whole)}
    return [Chart(key, title, traces, layout, note, bars=True, by_value=len(seen) == 1)] if traces else []


def over_trial(samples: Mapping[str, Any], number: int, row: Row) -> list[Chart]:
    """Power, clock, temperature and busy share of each device from launch to end: a chart for each that one tells."""
    devices = devices_of(samples)
    if not devices:
        return []
    launch_s = min(device["at_s"][0] for device in devices)
    blocks = [block for rank in samples["ranks"] for block in rank["blocks"] if is_number(block.get("end_s"))]
    ends = [moment - launch_s for block in blocks for moment in (block["start_s"], block["end_s"])]
    found = []
    for figure, (name, unit, scale) in OVER_TIME.items():
        lines = [_line(samples, device, figure, scale, launch_s, number) for device in devices]
        most = max((value for line in lines for value in line["y"] if value is not None), default=None)
        if most is not None:
            layout = {"xaxis": axis("s after launch"), "yaxis": axis(f"{name}, {unit}", rangemode="tozero")}
            choice = f"{name} · {row['label']} · {row['sweep']} · {row['session']}"
            traces = [*_shade(ends, most, number), *lines]
            found.append(Chart("device-samples", "Devices over the trial", traces, layout, OVER_NOTE, choice=choice))
    return found


def _line(
    samples: Mapping[str, Any], device: Mapping[str, Any], figure: str, scale: float, launch_s: float, number: int
) -> Trace:
    """What one device says over time, by the rank that computes on it; a device without a rank by its own name."""
    uuid = device["device_uuid"]
    ranks = [rank["rank"] for rank in samples["ranks"] if rank.get("device_uuid") == uuid]
    name = f"rank {ranks[0]}" if ranks else uuid[:UUID_LENGTH]
    moments = [rounded(at_s - launch_s) for at_s in device["at_s"]]
    return scatter(name, moments, [rounded(value, scale) for value in device[figure]], "lines", meta={"point": number})


def _shade(ends: Sequence[float], most: float, number: int) -> list[Trace]:
    """A band behind the counted steps; none where no block tells when it was."""
    if not ends:
        return []
    first, last = rounded(min(ends)), rounded(max(ends))
    look = {"fill": "toself", "fillcolor": SHADE, "line": {"width": 0}, "hoverinfo": "skip", "meta": {"point": number}}
    return [scatter("counted steps", [first, first, last, last], [0, most, most, 0], "lines", **look)]
