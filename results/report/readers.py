"""Stock readers beside our own: what a format's library holds back, and what the format or the storage does."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchsuite.results.render.tables import Row, is_missing
from benchsuite.results.scaling.staging import like

READER, LOADER = "spec.data.reader", "spec.data.loader"
ALONE = "loader_only_samples_per_s"
MIN_GAIN = 1.1
"""Our own reading that gives less than this much more leaves nothing to blame a library for."""
UNRANKED = (
    "tuned is the suite's own fast reading, which shows what a format could give: it is not ranked beside other readers"
)


def lines(points: Sequence[Row]) -> list[str]:
    """A line for each point that was read by both, the largest difference first; and why one of them has no rank."""
    found = sorted(_pairs(points), key=lambda pair: -pair[2])
    measured: dict[Any, list[Row]] = {}
    for row in points:
        if row["status"] == "ok":
            measured.setdefault(row.get("spec.workload"), []).append(row)
    unranked = any(len(choices(rows)) < len(rows) for rows in measured.values())
    return [_in_words(stock, tuned, gain) for stock, tuned, gain in found] + [UNRANKED] * unranked


def choices(points: Sequence[Row]) -> list[Row]:
    """The points that whoever trains may choose from: without our own reading, where another reader reads as well."""
    others = any(row.get(READER) not in ("tuned", None) for row in points)
    return [row for row in points if not others or row.get(READER) != "tuned"]


def _pairs(points: Sequence[Row]) -> Iterator[tuple[Row, Row, float]]:
    """Points read by a stock reader, the same by our own, and how many times as many samples these give.

    Our own reader has a loader of its own; in older records it also read for the loader that it is compared with.
    """
    measured = [row for row in points if row["status"] == "ok" and row.get("samples_per_s")]
    tuned = [row for row in measured if row.get(READER) == "tuned"]
    stock = [row for row in measured if row.get(READER) == "stock"]
    if not tuned or not stock:
        return
    by_any = {like(row, (READER, LOADER)): row for row in tuned}
    by_same = {like(row, (READER,)): row for row in tuned}
    for row in stock:
        other = by_same.get(like(row, (READER,))) or by_any.get(like(row, (READER, LOADER)))
        if other is not None:
            yield row, other, rate_of(other, row) / rate_of(row, other)


def rate_of(row: Row, other: Row) -> float:
    """Samples/s of a point's loader alone where that is known of both, else of its training."""
    return float(row[ALONE] if _alone(row, other) else row["samples_per_s"])


def _alone(row: Row, other: Row) -> bool:
    return not is_missing(row.get(ALONE)) and not is_missing(other.get(ALONE))


def _no_matter(stock: Row, tuned: Row) -> str:
    """Say that training takes no more samples of a loader that alone gives more; empty where it does."""
    rates = [float(row["samples_per_s"]) for row in (stock, tuned)]
    if rates[1] / rates[0] >= MIN_GAIN:
        return ""
    return f"; training is not held back by it (stock {rates[0]:.0f}, tuned {rates[1]:.0f} samples/s)"


def _in_words(stock: Row, tuned: Row, gain: float) -> str:
    given = f"stock {rate_of(stock, tuned):.0f}, tuned {rate_of(tuned, stock):.0f} samples/s"
    label = " ".join(word for word in str(stock["label"]).split(" ") if word != "stock")
    where = "the loader alone" if _alone(stock, tuned) else "in training"
    said = f"{f'{label}, {where}' if label else where}: {given}: tuned gives {gain:.1f} x"
    if gain >= MIN_GAIN:
        return f"{said}: held back by its library, not by the format or the storage{_no_matter(stock, tuned)}"
    return f"{said}: its library gives what the format and the storage have to give"
