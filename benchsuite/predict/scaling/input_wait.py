"""Waiting for input by ranks: as measured, and for what limits it: a file system that all share, or readers' cores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.results.render.tables import is_missing

INPUT_BOUND = 0.1
"""Input limits a step that waits for it for more than this share."""
BOUND_SHARE = 0.5
"""A point whose limit explains this share of its wait tells nothing about waiting without that limit."""


def input_bytes(curve: Curve) -> float:
    """Bytes of a sample as stored; 0 where they are not known."""
    for point in curve.points:
        if point.read_bytes:
            return point.read_bytes / curve.samples(point.ranks)
    return 0.0


def limit_bytes_per_s(curve: Curve, ranks: float, storage: float = 1.0) -> float | None:
    """What all ranks together get: of the shared file system, times `storage`, and of the cores of their nodes."""
    limits = [] if curve.shared_bytes_per_s is None else [curve.shared_bytes_per_s * storage]
    if curve.readers_bytes_per_s is not None:
        nodes = curve.placement.at(ranks) / curve.placement.at(curve.most_ranks)
        limits.append(curve.readers_bytes_per_s * nodes)
    return min(limits, default=None)


def load_s(curve: Curve, ranks: float, base_s: float, storage: float) -> tuple[float, float]:
    """Seconds a step of `base_s` waits for input at so many ranks, and their upper end.

    Within the measured ranks as measured. Beyond, a sample is waited for as long as at the most ranks (upper end: as
    their trend says), or until what limits input (`limit_bytes_per_s`) has delivered; where nothing is known to and
    input was waited for, the upper end is as if the largest rate seen were all there is.
    """
    per_rank, last = curve.samples(ranks) / ranks, curve.points[-1]
    whole, limit = input_bytes(curve) * curve.samples(ranks), limit_bytes_per_s(curve, ranks, storage)
    if storage == 1 and _as_measured(curve) and curve.points[0].ranks <= ranks <= last.ranks:
        found = _per_sample(curve, curve.points, ranks)[0] * per_rank
        return found, found
    own, most = (seconds * per_rank for seconds in _per_sample(curve, _unlimited(curve), ranks))
    if limit is not None and whole:
        delivered = whole / limit - base_s
        return max(own, delivered), max(most, delivered)
    seen = last.io_bytes_per_s
    if curve.staged is None and seen and ranks > last.ranks and _reads(curve):
        return own, max(most, whole / (seen * storage) - base_s)
    return own, most


def _as_measured(curve: Curve) -> bool:
    """Whether no other storage is asked for than that of the trials."""
    return curve.staged != "asked" and curve.seen_bytes_per_s in (None, curve.shared_bytes_per_s)


def _reads(curve: Curve) -> bool:
    """Whether input was waited for at the largest scale, so that its limit may be near."""
    last = curve.points[-1]
    return last.load_s > INPUT_BOUND / 2 * last.middle_s


def _unlimited(curve: Curve) -> tuple[Point, ...]:
    """The points whose waits are their own, not those of a shared limit; the first where there is none."""
    seen = replace(curve, shared_bytes_per_s=curve.seen_bytes_per_s or curve.shared_bytes_per_s)
    size = input_bytes(curve)
    if curve.staged == "asked":
        return curve.points[:1]
    if limit_bytes_per_s(seen, curve.most_ranks) is None or not size:
        return curve.points

    def by_limit_s(point: Point) -> float:
        return size * curve.samples(point.ranks) / (limit_bytes_per_s(seen, point.ranks) or np.inf) - point.base_s

    kept = tuple(point for point in curve.points if by_limit_s(point) <= BOUND_SHARE * point.load_s)
    return kept or curve.points[:1]


def _per_sample(curve: Curve, points: tuple[Point, ...], ranks: float) -> tuple[float, float]:
    """Seconds that a rank waits for each sample: between the points, or the last one's; and where the trend leads."""
    places = np.log2([point.ranks for point in points])
    waits = np.array([point.load_s * point.ranks / curve.samples(point.ranks) for point in points])
    value = float(np.interp(np.log2(ranks), places, waits))
    beyond = max(float(np.log2(ranks) - places[-1]), 0.0)
    slope = float((waits[-1] - waits[-2]) / (places[-1] - places[-2])) if len(points) > 1 else 0.0
    return value, value + max(slope, 0.0) * beyond


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
