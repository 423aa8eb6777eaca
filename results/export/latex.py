"""Tables of points for papers: LaTeX with the rules of booktabs, a table per sweep and session."""

import math
import string
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from benchsuite.results.render.latex import NEEDED, as_latex
from benchsuite.results.render.tables import (
    ABSENT,
    Column,
    Row,
    au_meaning,
    caveat_names,
    from_storage,
    is_above_one,
    is_missing,
    number,
    of_epoch,
    outcome,
    rows,
    telling,
)
from benchsuite.results.render.words import counted
from benchsuite.results.store.frames import MIN_REPEATS_FOR_INTERVAL, by_point

SIGNIFICANT = 3
UNMEASURABLE = "not measurable"


def point_tables(trials: pd.DataFrame) -> str:
    r"""A `table` for each sweep and session of a frame of trials; needs \usepackage{booktabs}."""
    found: dict[tuple[str, str], list[Row]] = {}
    for point in rows(by_point(trials)):
        found.setdefault((str(point["sweep"]), str(point["session"])), []).append(point)
    sweeps = Counter(sweep for sweep, _ in found)
    return NEEDED + "\n\n".join(
        _table(points, session if sweeps[sweep] > 1 else "") for (sweep, session), points in found.items()
    )


def _table(points: Sequence[Row], session: str) -> str:
    """The points of one sweep and session; the session is told where it is given.

    Caveats are letters, which the caption explains: their names are wider than a page has room for.
    """
    skipped = [point for point in points if point["status"] == "skipped"]
    points = [point for point in points if point["status"] != "skipped"] or points
    first, names = points[0], sorted({name for point in points for name in caveat_names(point)})
    letters = dict(zip(names, string.ascii_letters, strict=False))
    marked = Column("", lambda row: " ".join(map(letters.__getitem__, caveat_names(row))), right=False, optional=True)
    columns = telling(points, (*COLUMNS, marked))
    title = str(first["question"] or first["sweep"]).strip() + (f" (session {session})" if session else "")
    end = "" if title.endswith((".", "?", "!")) else "."
    caption = " ".join(filter(None, [f"{title}{end}", _meaning(points), au_meaning(points)]))
    if names:
        told = ", ".join(f"{letter}: {name.replace('_', ' ')}" for name, letter in letters.items())
        caption += f" Caveats: {told}."
    if skipped and skipped != points:
        caption += f" {counted(len(skipped), 'point')} could not be run here."
    return as_latex(points, columns, caption, f"{first['sweep']}-{first['session']}")


def _meaning(points: Sequence[Row]) -> str:
    """What stands in the cells, by how many repeats the points have."""
    repeats = [point["repeats"] for point in points]
    if max(repeats) < 2:
        return "Single trials."
    ranged = any(2 <= count < MIN_REPEATS_FOR_INTERVAL for count in repeats)
    signs = (["± farthest repeat"] if ranged else []) + (
        ["[ ] 95 % interval of the median"] if max(repeats) >= MIN_REPEATS_FOR_INTERVAL else []
    )
    return f"Medians over n ok repeats; {', '.join(signs)}."


def median_of(row: Row, name: str, scale: float = 1.0, digits: int | None = None) -> str:
    """A point's median with its 95 % interval, `1.00 [0.98, 1.01]`; where there is none, with its farthest repeat.

    Without `digits` it has three significant ones, at most as many decimals.
    """
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None or is_missing(value):
        return ABSENT
    if digits is None:
        digits = _decimals(value * scale)
    if low is None or high is None or is_missing(low) or is_missing(high):
        return number(row, name, scale, digits)
    return f"{value * scale:.{digits}f} [{low * scale:.{digits}f}, {high * scale:.{digits}f}]"


def _decimals(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return SIGNIFICANT - 1
    return min(SIGNIFICANT, max(0, SIGNIFICANT - 1 - math.floor(math.log10(abs(value)))))


COLUMNS = (
    Column("point", lambda row: str(row["label"]), right=False),
    Column("n", lambda row: str(row["repeats"])),
    Column("AU", lambda row: UNMEASURABLE if is_above_one(row) else median_of(row, "au", digits=2)),
    Column("AU of the epoch", of_epoch),
    Column("samples/s", lambda row: median_of(row, "samples_per_s")),
    Column("tokens/s", lambda row: median_of(row, "tokens_per_s")),
    Column("MFU", lambda row: median_of(row, "mfu", digits=2)),
    Column("MB/s", lambda row: median_of(row, "io_bytes_per_s", 1e-6)),
    Column("from storage", from_storage),
    Column("ms/step", lambda row: median_of(row, "step_s_mean", 1e3)),
    Column("verdict", outcome, right=False),
)
