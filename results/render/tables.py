"""Tables of results: which columns, how their values are printed, and as what."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.results.render.words import plain
from benchsuite.results.store.record import MAX_AU

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
PARTS = ("load_s", "h2d_s", "forward_s", "backward_s", "communication_s", "optimizer_s")
ABSENT = "-"
MAX_LABELS = 4


@dataclass(frozen=True)
class Column:
    """A column: its heading and how a row's cell is printed."""

    heading: str
    cell: Callable[[Row], str]
    right: bool = True
    optional: bool = False
    """Left out, also in Markdown, where no row has anything in it."""
    footnote: bool = False
    """Remarks: where a terminal is narrow they stand below the table, and numbers in it."""


def is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas' NA are missing; zero is not."""
    if value is None or isinstance(value, str):
        return value is None
    return (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NaTType", "NAType")


def is_above_one(row: Row) -> bool:
    """Whether a point's AU is above 1 by more than its noise: its ceiling was measured in a slower stretch."""
    return not is_missing(row.get("au")) and row["au"] > MAX_AU


def is_number(value: object) -> bool:
    """Whether a value is there, and a number; `auto`, the batch of a trial that never ran, is none."""
    return isinstance(value, Real) and not isinstance(value, bool) and not is_missing(value)


def whole(value: Any) -> Any:
    """A whole number without decimals, which a column with gaps gives it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number(row: Row, name: str, scale: float = 1.0, digits: int = 2) -> str:
    """A figure times scale; where the row has a range, with the larger distance to its ends."""
    value: Any = row.get(name)
    if is_missing(value):
        return ABSENT
    text = f"{value * scale:.{digits}f}"
    low: Any = row.get(f"{name}_min")
    high: Any = row.get(f"{name}_max")
    if is_missing(low) or is_missing(high) or (low == high and row.get("repeats", 1) < 2):
        return text
    return f"{text} ±{max(high - value, value - low) * scale:.{digits}f}"


def utilization(row: Row) -> str:
    """AU, of which one above 1 by more than its noise is none."""
    return "not measurable" if is_above_one(row) else number(row, "au")


ESTIMATED = " est."
"""Marks an AU of the epoch that was estimated from the counted window."""


def of_epoch(row: Row) -> str:
    """AU of the epoch with how far it may be off: by its repeats, or by its estimate where that reaches further."""
    figures: list[Any] = [row.get(f"au_epoch{end}") for end in ("", "_error", "_min", "_max")]
    value, error, low, high = figures
    if is_missing(value) or is_missing(error):
        return number(row, "au_epoch") + epoch_mark(row)
    lowest = value - error if is_missing(low) else min(low, value - error)
    highest = value + error if is_missing(high) else max(high, value + error)
    return number({**row, "au_epoch_min": lowest, "au_epoch_max": highest}, "au_epoch") + epoch_mark(row)


def epoch_mark(row: Row) -> str:
    """Mark an AU of the epoch that is estimated; empty where it was measured, or there is none."""
    return ESTIMATED if row.get("au_epoch_rule") in ("window", "stream") and not is_missing(row.get("au_epoch")) else ""


def au_meaning(points: Sequence[Row]) -> str:
    """What AU is of in a table of points, and AU of the epoch where one has it; empty where none has an AU."""
    measured = [row for row in points if not is_missing(row.get("au"))]
    epochs = [row for row in points if not is_missing(row.get("au_epoch"))]
    if not epochs:
        return "AU: step time with its input in memory / step time." if measured else ""
    mark = f";{ESTIMATED}: estimated from the counted window" if any(map(epoch_mark, epochs)) else ""
    errors = [row["au_epoch_error"] for row in epochs if not is_missing(row.get("au_epoch_error"))]
    within = f", within {max(errors):.2f}" if errors else ""
    return (
        "AU: step time with its input in memory / step time, of the counted window. "
        f"AU of the epoch: the same over a whole epoch from its readers' start{mark}{within}."
    )


def against_best(row: Row) -> str:
    """A choice's share of the best one's measure; ~ where the two cannot be told apart."""
    share: Any = row.get("against_best")
    return ABSENT if is_missing(share) else f"{share:.2f}{'' if row['told_apart'] else ' ~'}"


def ends(row: Row, name: str, scale: float = 1.0, digits: int = 1) -> str:
    """A figure times scale with its interval."""
    if row.get(name) is None:
        return ABSENT
    value, low, high = (row[f"{name}{end}"] * scale for end in ("", "_low", "_high"))
    return f"{value:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def step_parts(row: Row) -> str:
    """The parts of a step in ms, as a sum."""
    parts: list[Any] = [row.get(name) for name in PARTS]
    if all(is_missing(part) for part in parts):
        return ABSENT
    text = "+".join(ABSENT if is_missing(part) else f"{part * 1e3:.1f}" for part in parts)
    bubble: Any = row.get("bubble_s")
    other: Any = row.get("other_s")
    text += "" if is_missing(bubble) else f"+{bubble * 1e3:.1f} bubble"
    return text if is_missing(other) else f"{text}+{other * 1e3:.1f} other"


def waits(row: Row) -> str:
    """Share of the step that waits for input, where no AU says more."""
    stall: Any = row.get("input_stall_fraction")
    return ABSENT if is_missing(stall) or not is_missing(row.get("au")) else f"{stall:.0%}"


def from_storage(row: Row) -> str:
    """Share of the bytes read that came from storage."""
    hit: Any = row.get("cache_hit_fraction")
    return ABSENT if is_missing(hit) else f"{1 - hit:.0%}"


def outcome(row: Row) -> str:
    """The verdict of an ok row, with how many repeats have it if not all; any other status. Failed ones are counted."""
    if row["status"] != "ok":
        return str(row["status"])
    failed = row.get("repeats_failed", 0)
    verdict = ABSENT if is_missing(row.get("bottleneck")) else str(row["bottleneck"]).replace("_", " ")
    repeats, agreeing = row.get("repeats", 1), row.get("bottleneck_repeats")
    unsure = [f"{agreeing:.0f} of {repeats}"] if not is_missing(agreeing) and agreeing < repeats else []
    remarks = ", ".join([*unsure, *([f"{failed} failed"] if failed else [])])
    return f"{verdict} ({remarks})" if remarks else verdict


def troubles(trials: Sequence[Row]) -> list[str]:
    """A line for each way in which points did not run, with the points it struck."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in trials:
        if row["status"] != "ok":
            found.setdefault((str(row["status"]), str(row["reason"])), []).append(str(row["label"]))
    return [f"{status}: {points_in_words(labels)}: {reason}" for (status, reason), labels in found.items()]


def points_in_words(labels: Sequence[str]) -> str:
    """Labels with how often each occurs; many are cut short."""
    counts = Counter(labels)
    words = [label if count == 1 else f"{label} x {count}" for label, count in counts.items()]
    more = f" and {len(words) - MAX_LABELS} more" if len(words) > MAX_LABELS else ""
    return ", ".join(words[:MAX_LABELS]) + more


def ranked_flops(row: Row) -> str:
    """TFLOP/s of a device, where choices are ranked by them."""
    value: Any = row.get("tflops_per_device")
    return ABSENT if row.get("rank_by") != "tflops" or is_missing(value) else f"{value:.3g}"


def caveat_names(row: Row) -> list[str]:
    """The names of the caveats of a trial or point."""
    return [*row.get("caveats", []), *(["unstable"] if row.get("unstable") else [])]


def caveats(row: Row) -> str:
    """The caveats; of a point, too, how many of its repeats have one that not all have: `foreign_load(1/3)`."""
    borne: Any = row.get("caveat_repeats", {})
    repeats = row.get("repeats", 1) + row.get("repeats_failed", 0)
    few = {name: f"({count}/{repeats})" for name, count in borne.items() if count < repeats}
    return " ".join(f"{name}{few.get(name, '')}" for name in caveat_names(row))


COLUMNS = (
    Column("point", lambda row: str(row["label"]), right=False),
    Column("AU", utilization),
    Column("AU of the epoch", of_epoch, optional=True),
    Column("waits", waits, optional=True),
    Column("samples/s", lambda row: number(row, "samples_per_s", digits=0)),
    Column("against best", against_best, optional=True),
    Column("tokens/s", lambda row: number({**row, "repeats": 1}, "tokens_per_s", digits=0), optional=True),
    Column("samples/s a process", lambda row: number(row, "samples_per_s_per_process", digits=0), optional=True),
    Column("staleness", lambda row: number(row, "staleness_mean", digits=1), optional=True),
    Column("TFLOP/s", ranked_flops, optional=True),
    Column("MFU", lambda row: number(row, "mfu"), optional=True),
    Column("tiles", lambda row: number({**row, "repeats": 1}, "tile_efficiency"), optional=True),
    Column("MB/s", lambda row: number({**row, "repeats": 1}, "io_bytes_per_s", 1e-6, 1)),
    Column("from storage", from_storage),
    Column("ms/step", lambda row: number({**row, "repeats": 1}, "step_s_mean", 1e3, 1)),
    Column("= load+h2d+fwd+bwd+comm+opt", step_parts, right=False),
    Column("verdict", outcome, right=False),
    Column("caveats", caveats, right=False, footnote=True),
)
POINT_COLUMNS = (
    Column("sweep", lambda row: str(row["sweep"]), right=False),
    Column("session", lambda row: str(row["session"]), right=False),
    *COLUMNS,
)
TRIAL_COLUMNS = (
    Column("trial", lambda row: str(row["trial_id"]), right=False),
    Column("status", lambda row: str(row["status"]), right=False),
    *COLUMNS,
)


def rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """A frame's rows with null for what is missing."""
    names = [str(name) for name in frame.columns]
    columns = [_values(column) for _, column in frame.items()]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@cache
def names_below(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a row's fields below a prefix. All rows of a frame have the same, and there may be thousands."""
    return tuple(name for name in names if name.startswith(prefix))


def _values(column: "pd.Series[Any]") -> list[Any]:
    """A column's values as Python's, null for what is missing."""
    if column.dtype.kind == "f" and isinstance(column.dtype, np.dtype):
        numbers = column.to_numpy()
        missing = np.isnan(numbers)
        if missing.all():
            return [None] * len(numbers)
        held = numbers.astype(object)
        held[missing] = None
        return list(held)
    if column.dtype.kind in "iub" and isinstance(column.dtype, np.dtype):
        return list(column.tolist())
    values = column.to_numpy(dtype=object).tolist()
    return [value if type(value) is str else _plain(value) for value in values]


def _plain(value: Any) -> Any:
    """None for what is missing, lists for arrays, Python's numbers for NumPy's."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return None if is_missing(value) else value


def telling(found: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """The columns that say anything of any row."""
    return [column for column in columns if any(column.cell(row) not in ("", ABSENT) for row in found)]


def as_markdown(found: Sequence[Row], columns: Sequence[Column]) -> str:
    """A pipe table."""
    kept = telling(found, columns)
    columns = [column for column in columns if not column.optional or column in kept]
    lines = [
        "| " + " | ".join(_cell(column.heading) for column in columns) + " |",
        "|" + "|".join("---:" if column.right else "---" for column in columns) + "|",
    ]
    for row in found:
        cells = [_cell(column.cell(row)) for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def inline(text: str) -> str:
    """A text as Markdown prints it: on one line, and without HTML."""
    return " ".join(plain(text).split()).replace("&", "&amp;").replace("<", "&lt;")


def _cell(text: str) -> str:
    return inline(text).replace("|", "\\|")


def as_json(found: Sequence[Row]) -> str:
    """A JSON array of flat objects."""
    return json.dumps(list(found), indent=1, default=str)


def as_csv(found: Sequence[Row]) -> str:
    """CSV of every field; nested ones as JSON."""
    names = list(dict.fromkeys(name for row in found for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in found:
        values = map(row.get, names)
        writer.writerow([json.dumps(value) if isinstance(value, (list, dict)) else value for value in values])
    return out.getvalue().rstrip("\n")
