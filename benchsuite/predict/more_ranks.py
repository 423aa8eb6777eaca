"""What every prediction at more ranks shares: the ranks that may be asked for, printed columns, rows of back-tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.results.render.tables import Column, ends, number

MAX_BEYOND = 8
"""Times the most ranks measured: predictions beyond it are refused unless asked for."""

COLUMNS = (
    Column("ranks", lambda row: str(row["ranks"])),
    Column("measured", lambda row: number({**row, "repeats": 1}, "measured_s", 1e3), optional=True),
    Column("ms/step [90 %]", lambda row: ends(row, "step_s", 1e3)),
    Column("samples/s [90 %]", lambda row: ends(row, "samples_per_s")),
    Column("efficiency [90 %]", lambda row: ends(row, "efficiency", digits=2)),
)
TEST_COLUMNS = (
    Column("ranks", lambda row: str(row["ranks"])),
    Column("measured ms/step", lambda row: f"{row['measured_s'] * 1e3:.1f}"),
    Column("predicted [90 %]", lambda row: ends(row, "step_s", 1e3)),
    Column("error", lambda row: f"{row['error'] * 100:+.1f} %"),
    Column("within", lambda row: "yes" if row["within"] else "no"),
)


def rank_counts(text: str, is_needed: bool, instead: str) -> tuple[int, ...]:
    """Numbers of ranks from `16,64` of --ranks, ascending; `instead`: the options that need none.

    Raises:
        UserError: none, where they are needed, or something else than whole numbers.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if is_needed and not words:
        raise UserError(f"--ranks is missing: give numbers of ranks to predict, such as --ranks 16,64, or {instead}")
    wrong = [word for word in words if not word.isdigit() or int(word) < 1]
    if wrong:
        raise UserError(f"--ranks {wrong[0]!r}: allowed: whole numbers from 1, with commas: 16,64,256")
    return tuple(sorted({int(word) for word in words}))


def check_beyond(title: str, ranks: Sequence[int], most: int) -> None:
    """Refuse ranks too far beyond the `most` that were measured.

    Raises:
        UserError: more than MAX_BEYOND times as many.
    """
    beyond = next((count for count in ranks if count > MAX_BEYOND * most), None)
    if beyond is not None:
        raise UserError(
            f"{title}: {beyond} ranks are {beyond / most:.3g} times the {most} measured; allowed: up to {MAX_BEYOND} "
            f"times ({MAX_BEYOND * most}); measure more ranks, or give --far"
        )


def tested(label: str, ranks: int, measured_s: float, seconds: Sequence[float]) -> dict[str, Any]:
    """A flat row of a predicted step and the ends of its interval beside what was measured."""
    step_s, low_s, high_s = seconds
    own = {"label": label, "ranks": ranks, "measured_s": measured_s}
    own |= {"step_s": step_s, "step_s_low": low_s, "step_s_high": high_s}
    return own | {"error": step_s / measured_s - 1, "within": low_s <= measured_s <= high_s}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Errors of a back-test and how many of its intervals hold."""
    errors = np.abs([row["error"] for row in rows])
    within = float(np.mean([row["within"] for row in rows]))
    return (
        f"{len(rows)} predicted: error median {np.median(errors):.1%}, mean {errors.mean():.1%}, worst "
        f"{errors.max():.1%}; {within:.0%} within their 90 % intervals"
    )
