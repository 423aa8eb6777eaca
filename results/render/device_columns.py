"""Columns of what devices say of themselves, and all columns there are: of `report --table`."""

import math
from collections.abc import Sequence
from typing import Any

from benchsuite.results.render.tables import ABSENT, COLUMNS, Column, Row, is_missing, is_number, number, telling
from benchsuite.results.store.record import TrialFigures

GB = 1e-9


def card_bytes(row: Row) -> int | None:
    """Memory of the smallest device that a row's ranks computed on; None on CPUs, and where it is not known."""
    listed: Any = row.get("env.devices")
    devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    device = row.get("spec.device")  # watched loops name theirs
    meant = devices if device == "cuda" else [one for one in devices if one.get("name") == device]
    return min((int(one["memory_bytes"]) for one in meant if is_number(one.get("memory_bytes"))), default=None)


def significant(row: Row, name: str, scale: float = 1.0) -> str:
    """A figure times scale to three significant digits, with the distance to its ends."""
    value: Any = row.get(name)
    if is_missing(value):
        return ABSENT
    size = abs(value * scale)
    return number(row, name, scale, max(0, 2 - math.floor(math.log10(size))) if size else 0)


def percent(row: Row, name: str) -> str:
    """A share in per cent."""
    return number(row, name, 100.0, 0)


def of_card(row: Row) -> str:
    """The peak of memory against the card's: what the device held, what PyTorch had reserved, or tensors."""
    card = card_bytes(row)
    names = ("device_memory_bytes", "reserved_memory_bytes", "peak_memory_bytes")
    held: Any = max((row[name] for name in names if not is_missing(row.get(name))), default=None)
    return ABSENT if card is None or held is None else f"{held * GB:.1f} of {card * GB:.0f}"


DEVICE_COLUMNS = (
    Column("energy J", lambda row: significant(row, "energy_j"), optional=True),
    Column("J per 1,000 samples", lambda row: significant(row, "energy_j_per_sample", 1e3), optional=True),
    Column("GPU busy %", lambda row: percent(row, "gpu_busy_fraction"), optional=True),
    Column("power-capped %", lambda row: percent(row, "power_capped_fraction"), optional=True),
    Column("too hot %", lambda row: percent(row, "too_hot_fraction"), optional=True),
    Column("NVLink GB/s", lambda row: significant(row, "nvlink_bytes_per_s", GB), optional=True),
    Column("reserved GB", lambda row: significant(row, "reserved_memory_bytes", GB), optional=True),
    Column("on the device GB", lambda row: significant(row, "device_memory_bytes", GB), optional=True),
    Column("peak of the card's GB", of_card, optional=True),
)
LEGEND = (
    "energy: of all devices over the counted steps; on CPUs of the nodes' sockets\n"
    "GPU busy: a kernel ran, mean of ranks · power-capped, too hot: clocks held back, the worst device\n"
    "NVLink: sent and received, the busiest device · reserved: by PyTorch's allocator, at most\n"
    "on the device: in use at the end, libraries' included · peak of the card's: the largest of these and of tensors"
)
LAST = 2
"""Columns of words, which stand at the end."""
WITH_DEVICES = (*COLUMNS[:-LAST], *DEVICE_COLUMNS, *COLUMNS[-LAST:])
OWN_COLUMN = (
    *("au", "au_epoch", "au_epoch_error", "samples_per_s", "tokens_per_s", "samples_per_s_per_process"),
    *("staleness_mean", "mfu", "tile_efficiency", "io_bytes_per_s", "step_s_mean"),
    *("load_s", "h2d_s", "forward_s", "backward_s", "communication_s", "optimizer_s", "bubble_s", "other_s"),
    *("energy_j", "energy_j_per_sample", "gpu_busy_fraction", "power_capped_fraction", "too_hot_fraction"),
    *("nvlink_bytes_per_s", "reserved_memory_bytes", "device_memory_bytes"),
)
"""Figures that a column of WITH_DEVICES tells; any other stands by its name in a record."""


def legend(points: Sequence[Row]) -> list[str]:
    """What DEVICE_COLUMNS mean; nothing where none of them says anything."""
    return LEGEND.split("\n") if telling(points, DEVICE_COLUMNS) else []


def every_column(points: Sequence[Row]) -> list[Column]:
    """WITH_DEVICES, and a column for each other number that a point has, by its name in a record and in SI units."""
    others = [name for name in TrialFigures.model_fields if name not in OWN_COLUMN]
    known = [name for name in others if any(is_number(row.get(name)) for row in points)]
    return [*WITH_DEVICES[:-LAST], *map(_by_name, known), *WITH_DEVICES[-LAST:]]


def _by_name(name: str) -> Column:
    return Column(name, lambda row: _plain_number(row.get(name)), optional=True)


def _plain_number(value: Any) -> str:
    """A number in whole digits from a thousand on, else in four significant ones."""
    if not is_number(value):
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
