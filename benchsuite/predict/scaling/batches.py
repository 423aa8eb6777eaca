"""Curves of a batch that was not measured, made of those of two batches that were."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.model import PARTS
from benchsuite.predict.scaling.series import LEAST_NOISE, MIN_SCALES
from benchsuite.results.scaling.series import Series, shared_settings

MAX_TIMES = 2
"""Times more samples than in the largest batch measured, or fewer than in the smallest: refused beyond."""
FALLS = 0.9
"""A step of more samples that takes less than this share of one of fewer tells nothing about batches."""
LeftOut = tuple[str, str]
"""A title, and why nothing is predicted."""


def of_batch(found: Sequence[Series], curves: Sequence[Curve], batch: int) -> tuple[list[Curve], list[LeftOut]]:
    """Curves of `batch` samples a rank: one for each set of weak series that differ in their batch alone.

    As measured where it was. Else every number of ranks that two other batches have in common is put on the straight
    line through them: those around it, or the nearest two.

    Raises:
        UserError: none can be made; the first reason.
    """
    groups: dict[object, dict[int, Curve]] = {}
    for series, curve in zip(found, curves, strict=True):
        if curve.kind == "weak":
            groups.setdefault(shared_settings(series.example), {})[series.batch] = curve
    made: list[Curve] = []
    left_out: list[LeftOut] = []
    for measured in groups.values():
        title = _title(next(iter(measured.values())), batch)
        try:
            made.append(_of_group(measured, batch, title))
        except UserError as error:
            left_out.append((title, str(error)))
    if not made:
        why = ": ".join(left_out[0]) if left_out else "no series keeps the batch of a rank (weak scaling)"
        raise UserError(f"--batch-size {batch}: {why}")
    return made, left_out


def _title(curve: Curve, batch: int) -> str:
    return f"{curve.title.rpartition(' · ')[0]} · {batch} per rank"


def _of_group(measured: Mapping[int, Curve], batch: int, title: str) -> Curve:
    if batch in measured:
        return measured[batch]
    batches = sorted(measured)
    known = ", ".join(map(str, batches))
    if len(batches) < 2:
        raise UserError(
            f"measured with {known} samples a rank alone, which do not tell what more or fewer take; measure another "
            "batch at the same ranks"
        )
    least = max(batches[0] / MAX_TIMES, 2 * batches[0] - batches[1])
    most = min(batches[-1] * MAX_TIMES, 3 * batches[-1] - 2 * batches[-2])
    if not least <= batch <= most:
        raise UserError(f"measured with {known} samples a rank; allowed: {np.ceil(max(least, 1)):g} to {most:g}")
    place = int(np.clip(np.searchsorted(batches, batch), 1, len(batches) - 1))
    return _between(measured[batches[place - 1]], measured[batches[place]], batch, title)


def _between(few: Curve, many: Curve, batch: int, title: str) -> Curve:
    share = (batch - few.batch) / (many.batch - few.batch)
    of_many = {point.ranks: point for point in many.points}
    pairs = [(point, of_many[point.ranks]) for point in few.points if point.ranks in of_many]
    if len(pairs) < MIN_SCALES:
        raise UserError(
            f"{few.batch:g} and {many.batch:g} samples a rank were measured at {len(pairs)} of the same numbers of "
            f"ranks; a prediction needs {MIN_SCALES}"
        )
    for one, other in pairs:
        if other.base_s < FALLS * one.base_s:
            raise UserError(
                f"at {one.ranks} ranks a step of {many.batch:g} samples takes {other.base_s * 1e3:.1f} ms, one of "
                f"{few.batch:g} {one.base_s * 1e3:.1f} ms: these tell nothing about batches"
            )
    made = replace(
        many,
        title=title,
        batch=batch,
        points=tuple(_point(one, other, share) for one, other in pairs),
        shared_bytes_per_s=_largest(few.shared_bytes_per_s, many.shared_bytes_per_s),
        seen_bytes_per_s=_largest(few.seen_bytes_per_s, many.seen_bytes_per_s),
        readers_bytes_per_s=_largest(few.readers_bytes_per_s, many.readers_bytes_per_s),
        has_input=few.has_input and many.has_input,
        caveats=tuple(dict.fromkeys((*few.caveats, *many.caveats))),
        batches=(int(few.batch), int(many.batch)),
        spread=_spread(pairs, (few.batch, many.batch), batch),
        refit_on_subset=None,
    )
    told = (f"of the trials with {many.batch:g} samples a rank: {note}" for note in many.notes)
    return replace(made, notes=(_in_words(made), *told))


def _largest(*limits: float | None) -> float | None:
    return max((limit for limit in limits if limit is not None), default=None)


def _mixed(one: float | None, other: float | None, share: float) -> float | None:
    """The value on the line through both; none below 0."""
    return None if one is None or other is None else max((1 - share) * one + share * other, 0.0)


def _point(one: Point, other: Point, share: float) -> Point:
    parts = None
    if one.parts is not None and other.parts is not None:
        parts = {name: max((1 - share) * one.parts[name] + share * other.parts[name], 0.0) for name in PARTS}
    made = Point(
        one.ranks,
        _steps(one.step_s, other.step_s, share),
        _mixed(one.load_s, other.load_s, share) or 0.0,
        parts,
        backward_s=_mixed(one.backward_s, other.backward_s, share),
    )
    read = _mixed(one.read_bytes, other.read_bytes, share)
    scale = _mixed(one.au_scale, other.au_scale, share)
    return replace(
        made,
        io_bytes_per_s=None if read is None else read / made.middle_s,
        au=None if scale is None else scale * made.base_s / made.middle_s,
    )


def _steps(one: Sequence[float], other: Sequence[float], share: float) -> tuple[float, ...]:
    """Steps of as many repeats as both have. Beyond the two, low ones stand with high ones: their errors add up."""
    places = np.linspace(0, 1, count) if (count := min(len(one), len(other))) > 1 else np.array([0.5])
    low, high = np.quantile(one, places), np.quantile(other, places)
    return tuple(((1 - share) * (low if 0 <= share <= 1 else low[::-1]) + share * high).tolist())


def bounds(few_s: float, many_s: float, batches: tuple[float, float], batch: float) -> tuple[float, float]:
    """Where a step of `batch` samples lies, if more samples take no less time, and none of them more; with the line.

    Beyond the larger batch its own step would be the lower end. Time that small batches do not fill (launches) makes
    the line too low there, hardly too high: so the lower end is no farther below it than the upper is above.
    """
    few, many = batches
    line = few_s + (batch - few) / (many - few) * (many_s - few_s)
    if batch > many:
        high = many_s * batch / many
        low = max(many_s, min(2 * line - high, high))
    elif batch < few:
        low, high = few_s * batch / few, few_s
    else:
        low, high = max(few_s, many_s * batch / many), min(many_s, few_s * batch / few)
    return min(low, high, line), max(low, high, line)


def _spread(pairs: Sequence[tuple[Point, Point]], batches: tuple[float, float], batch: float) -> tuple[float, float]:
    """How far the truth may lie below and above the line, as shares: `bounds`, and noise that the distance enlarges."""
    share = (batch - batches[0]) / (batches[1] - batches[0])
    ends = []
    for one, other in pairs:
        line = (1 - share) * one.base_s + share * other.base_s
        low, high = bounds(one.base_s, other.base_s, batches, batch)
        ends.append((1 - low / line, high / line - 1))
    noise = LEAST_NOISE * max(float(np.hypot(1 - share, share)) - 1, 0.0)
    below, above = np.hypot(np.max(ends, axis=0), noise)
    return float(below), float(above)


def _in_words(curve: Curve) -> str:
    few, many = curve.batches
    below, above = curve.spread
    where = "on" if few <= curve.batch <= many else "beyond, on"
    return (
        f"no trial has {curve.batch:g} samples a rank: steps lie {where} the straight line through those of {few} and "
        f"{many} at the same ranks; the interval holds {below:.0%} less to {above:.0%} more, where a step of more "
        "samples is no shorter, and each of them takes no longer"
    )
