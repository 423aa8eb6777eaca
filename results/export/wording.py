"""Words and numbers of sentences about trials."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from results.report.plain import and_, counted
from results.report.tables import Row, is_missing

MAX_VALUES = 6
"""Values of one fact that are told."""


def ok_ones(trials: Sequence[Row]) -> list[Row]:
    """Trials that have figures."""
    return [row for row in trials if row["status"] == "ok"]


def ran_ones(trials: Sequence[Row]) -> list[Row]:
    """Trials that were tried."""
    return [row for row in trials if row["status"] != "skipped"]


def told_of(trials: Sequence[Row], value: str | Callable[[Row], Any]) -> str:
    """The values that trials have, how many trials have which where they differ; nothing where none has any."""
    found = [row.get(value) if isinstance(value, str) else value(row) for row in trials]
    counts = Counter(str(each) for each in found if not is_missing(each) and each != "")
    if len(counts) == 1 and counts.total() == len(found):
        return next(iter(counts))
    told = [f"{name} ({counted(count, 'trial')})" for name, count in counts.most_common(MAX_VALUES)]
    return and_(told + ([f"{len(counts) - MAX_VALUES} more"] if len(counts) > MAX_VALUES else []))


def span(values: Sequence[int]) -> str:
    """The least and the most, or the one there is."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def in_bytes(value: Any) -> str | None:
    """A size in decimal units."""
    if is_missing(value):
        return None
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"


def is_emulated(row: Row) -> bool:
    """Whether its accelerator was not there."""
    return str(row.get("spec.device")).startswith("emulated")
