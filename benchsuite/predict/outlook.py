"""Predictions as rows and lines: what is printed of a curve, what it rests on, and how well it did before."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import variance
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict import more_ranks
from benchsuite.predict.average import Average, fit
from benchsuite.predict.curve import MIN_SCALES, Curve
from benchsuite.predict.more_ranks import MAX_BEYOND, check_beyond, summary, tested
from benchsuite.predict.theory.arrays import Floats
from benchsuite.results.render.tables import Column, ends
from benchsuite.results.render.words import counted

LEAST_ABOVE = 0.01
"""How far above 1 an efficiency is worth a line."""
LEAST_TOLD = 0.05
"""Weight of a law that is told."""

COLUMNS = (*more_ranks.COLUMNS, Column("AU [90 %]", lambda row: ends(row, "au", digits=2), optional=True))
TEST_COLUMNS = (Column("series", lambda row: str(row.get("label", "")), right=False), *more_ranks.TEST_COLUMNS)


def check_reach(curve: Curve, ranks: Sequence[int], far: bool) -> None:
    """Refuse ranks too far beyond what was measured.

    Raises:
        UserError: more than MAX_BEYOND times the largest measured scale, and `far` is not set; or a batch of all ranks
            that so many cannot share.
    """

    def is_uneven(count: int) -> bool:
        return curve.kind == "strong" and bool(curve.batch % max(1.0, count * curve.data_share))

    uneven = next((count for count in ranks if is_uneven(count)), None)
    if uneven is not None:
        why = f"{curve.title}: {uneven} ranks cannot share {curve.batch:g} samples a step evenly"
        if any(is_uneven(point.ranks) for point in curve.points):
            raise UserError(
                f"{why}, nor could all of those measured; where ranks share samples, say how many: columns tensor and "
                "pipeline"
            )
        raise UserError(f"{why}; take a divisor of {curve.batch:g}, or a series of a larger batch")
    if not far:
        check_beyond(curve.title, ranks, curve.most_ranks)


def predict(curve: Curve, ranks: Sequence[int]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of predictions at these ranks, and what they rest on.

    Raises:
        UserError: fewer than two numbers of ranks were measured.
    """
    average = average_of(curve)
    seconds = average.seconds(ranks)
    utilization = _utilization(curve, ranks)
    rows = [_row(curve, count, seconds[:, k], utilization[:, k]) for k, count in enumerate(ranks)]
    return rows, _basis(curve, average, max(ranks, default=0))


def average_of(curve: Curve) -> Average:
    """The average fitted to a curve.

    Raises:
        UserError: fewer than two numbers of ranks were measured.
    """
    points = curve.points
    if len(points) < MIN_SCALES:
        known = "".join(counted(point.ranks, "rank") for point in points) or "no ranks"
        raise UserError(
            f"{curve.title}: measured at {known}: a prediction needs at least {MIN_SCALES} scales, such as `benchsuite "
            "sweep weak-scaling` measures"
        )
    return fit(curve.kind, [p.ranks for p in points], [p.middle_s for p in points], _repeat_variances(curve))


def _repeat_variances(curve: Curve) -> list[float]:
    """Relative variances of each scale's median, from the repeats of all scales; 0 where no scale has several."""
    several = [point for point in curve.points if len(point.step_s) > 1]
    freedom = sum(len(point.step_s) - 1 for point in several)
    squares = sum((len(point.step_s) - 1) * variance(np.log(point.step_s).tolist()) for point in several)
    return [squares / freedom / len(point.step_s) if freedom else 0.0 for point in curve.points]


def _utilization(curve: Curve, ranks: Sequence[int]) -> Floats:
    """(3, n): AU and its ends, where each scale has one, else NaN: its inverse grows as a step of weak scaling does."""
    inverse = [1 / point.au for point in curve.points if point.au]
    if len(inverse) < len(curve.points):
        return np.full((3, len(ranks)), np.nan)
    measured = [point.ranks for point in curve.points]
    value, low, high = 1 / fit("weak", measured, inverse, _repeat_variances(curve)).seconds(ranks)
    return np.minimum([value, high, low], max(1.0, *(point.au or 0.0 for point in curve.points)))


def _row(curve: Curve, ranks: int, seconds: Floats, utilization: Floats) -> dict[str, Any]:
    """A flat row of one prediction. Efficiency is P(N) / (P(N0) N / N0), N0 the smallest scale: there it is 1."""
    first = curve.points[0]
    rates = [curve.samples(ranks) / seconds[place] for place in (0, 2, 1)]
    ideal = curve.samples(first.ranks) / first.middle_s * ranks / first.ranks
    measured = next((point.middle_s for point in curve.points if point.ranks == ranks), None)
    return {
        "ranks": ranks,
        "measured_s": measured,
        **_three("step_s", seconds),
        **_three("samples_per_s", rates),
        **_three("efficiency", [1.0] * 3 if ranks == first.ranks else [rate / ideal for rate in rates]),
        **_three("au", utilization),
    }


def _three(name: str, values: Iterable[float]) -> dict[str, float | None]:
    """A value and the ends of its interval; None where they are NaN."""
    found = (None if np.isnan(value) else float(value) for value in values)
    return {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), found, strict=True)}


def _basis(curve: Curve, average: Average, most: int) -> list[str]:
    """What the predictions of a curve rest on, each a line, and what they cannot say."""
    points, last = curve.points, curve.points[-1]
    batch = "of a rank" if curve.kind == "weak" else "of all ranks"
    known = ", ".join(str(point.ranks) for point in points)
    steps = ", ".join(f"{point.middle_s * 1e3:.1f} at {point.ranks}" for point in points)
    lines = [
        f"fitted to {known} ranks, {curve.kind}: the batch {batch} stays; the same machine, network and software at "
        "all scales",
        f"measured: ms/step (samples over their rate) {steps} ranks",
    ]
    if most > last.ranks:
        laws = ", ".join(f"{name} {weight:.0%}" for name, weight in average.shares.items() if weight >= LEAST_TOLD)
        lines.append(
            f"beyond {last.ranks} ranks: an average of laws, each by how well it explains the measurements: {laws}; a "
            f"measurement at {min(MAX_BEYOND * last.ranks, most)} ranks would tighten the interval most"
        )
        if len(points) == MIN_SCALES:
            lines.append(f"{MIN_SCALES} scales do not show how a loss grows: measure a third")
    return [*lines, *_above_one(curve), *curve.notes]


def _above_one(curve: Curve) -> list[str]:
    """Why an efficiency above 1 may be printed: a measured scale has it already."""
    rates = {point.ranks: curve.samples(point.ranks) / point.middle_s / point.ranks for point in curve.points}
    first, best = curve.points[0].ranks, max(rates, key=lambda ranks: rates[ranks])
    if rates[best] <= (1 + LEAST_ABOVE) * rates[first]:
        return []
    return [
        f"efficiency above 1: {rates[best] / rates[first]:.3f} was measured at {best} ranks, and no law explains it: "
        f"look at what was different at {first}"
    ]


def back_test(curve: Curve) -> tuple[list[dict[str, Any]], list[str]]:
    """Predict the scales above half of the largest from those below, and say how far it was off.

    Raises:
        UserError: fewer than two scales would be left.
    """
    half = curve.most_ranks / 2
    held = [point for point in curve.points if point.ranks > half]
    left = tuple(point for point in curve.points if point.ranks <= half)
    if len(left) < MIN_SCALES:
        known = ", ".join(str(point.ranks) for point in curve.points)
        raise UserError(
            f"{curve.title}: measured at {known} ranks: a back-test leaves out those above {half:g} and needs "
            f"{MIN_SCALES} scales below"
        )
    seconds = average_of(replace(curve, points=left)).seconds([point.ranks for point in held])
    rows = [tested(curve.title, p.ranks, p.middle_s, seconds[:, k].tolist()) for k, p in enumerate(held)]
    return rows, [f"fitted to {', '.join(str(point.ranks) for point in left)} ranks", summary(rows)]
