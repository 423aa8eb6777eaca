"""Waiting for ranks whose input is late: it shows in the exchange, as imbalance, and is input's all the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.results.render.tables import is_missing

TELLING = 0.02
"""Share of a step from which on imbalance is worth a line."""
Row = Mapping[str, Any]


def late_s(row: Row) -> float | None:
    """Seconds of a step that a rank waits in the exchange for those whose input came later; None where not told.

    Ranks meet in every step, so what the hungriest waits (`input_stall_fraction`, of the step) all wait: what the mean
    rank does not wait for its own input (`load_mean_s`), it waits for another's. No more than the imbalance measured.
    """
    known = [figure(row, name) for name in ("input_stall_fraction", "step_s_mean", "load_mean_s", "imbalance_mean_s")]
    if any(value is None for value in known):
        return None
    stall, step, load, waited = (value or 0.0 for value in known)
    return min(max(stall * step - load, 0.0), waited)


def notes(rows: Mapping[int, Row]) -> Sequence[str]:
    """What is said of the imbalance of a series with input, by ranks: what load explains, or that it is not known."""
    found = [
        (ranks, row, waited, step)
        for ranks, row in rows.items()
        if (waited := figure(row, "imbalance_mean_s")) and (step := figure(row, "step_s_mean"))
        if waited > TELLING * step
    ]
    if not found:
        return ()
    ranks, row, waited, step = found[-1]
    late = late_s(row)
    if late is None:
        return (
            f"input: at {ranks} ranks each waits {waited / step:.0%} of the step for slower ones; whether their "
            "input was late is not in the records: counted as imbalance, so that AU may be lower than said",
        )
    if late <= TELLING * step:
        return ()
    return (
        f"input: at {ranks} ranks each waits {late / step:.0%} of the step for ranks whose input is late: counted as "
        f"waiting for input; {waited - late:.3g} s of imbalance stay",
    )


def figure(row: Row, *names: str) -> float | None:
    """The first figure that is there."""
    return next((float(row[name]) for name in names if not is_missing(row.get(name))), None)
