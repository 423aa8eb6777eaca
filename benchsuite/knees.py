"""Series that differ in staging alone, with the closed form of their utilization and the knee of the shared storage."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from benchsuite.predict import io
from results.knee import Knee, bytes_per_s, input_knee, knee_line, record_bytes, staged, staging_pairs
from results.report.modelled import StorageCurve, StorageKnee
from results.report.tables import is_missing
from results.scaling import ScalingPoint, Series, batches

BEYOND, NUM_RANKS = 2, 60
"""Times the most ranks measured that curves go to; and how many ranks they are drawn at."""


def storage_knees(found: Sequence[Series], titles: Sequence[str]) -> list[StorageKnee]:
    """Each series from shared storage that has its like from node-local copies, or a knee."""
    names = {id(series): title for series, title in zip(found, titles, strict=True)}
    told = [(shared, copies, input_knee(shared)) for shared, copies in staging_pairs(found)]
    return [
        _knee(names[id(shared)], shared, copies, knee)
        for shared, copies, knee in told
        if shared.rates and (copies or knee.ranks is not None)
    ]


def _knee(title: str, shared: Series, copies: Sequence[Series], knee: Knee) -> StorageKnee:
    record, alone = record_bytes(shared), _alone(shared, knee)
    compute = compute_s(shared) if shared.kind == "weak" else None
    star = None
    if knee.limit_bytes_per_s is not None and record is not None and compute is not None and alone is not None:
        star = float(io.knee(knee.limit_bytes_per_s, compute, per_rank(shared), record, min(alone, 1.0)))
    curves = [_curve(shared, knee, star), *(_curve(series, Knee(), None) for series in copies)]
    return StorageKnee(title, curves, star, [*_lines(shared, knee, star, compute, record)])


def _lines(shared: Series, knee: Knee, star: float | None, compute: float | None, record: float | None) -> list[str]:
    fitted = knee_line(shared) or f"no knee: {knee.problem}"
    if star is None or compute is None or record is None or knee.limit_bytes_per_s is None:
        return [fitted]
    return [
        fitted,
        f"N* = B t_c / (AU batch record) = {bytes_per_s(knee.limit_bytes_per_s)} x {compute * 1e3:.4g} ms / "
        f"({min(_alone(shared, knee) or 1.0, 1.0):.3g} x {per_rank(shared):g} x {record / 1e6:.4g} MB) = {star:.3g} "
        "ranks, B as the file system saturated, AU below it",
    ]


def _curve(series: Series, knee: Knee, star: float | None) -> StorageCurve:
    """AU = t_c / max(t_c, t_io): t_io is the client's, from below the knee, or what the shared limit leaves a rank.

    At whole numbers of ranks, and where it bends.
    """
    name = "node-local copy" if staged(series) else "shared file system"
    name += " (lazy)" if series.example.get("spec.data.staging") == "lazy" else ""
    compute, alone, record = compute_s(series), _alone(series, knee), record_bytes(series)
    if compute is None or alone is None or series.kind != "weak":
        return StorageCurve(name, series)
    most = BEYOND * max(series.rates)
    ranks = np.unique(np.geomspace(min(series.rates), most, NUM_RANKS).round()).astype(int)
    reading = np.full(len(ranks), compute / alone)
    if knee.limit_bytes_per_s is not None and record is not None:
        reading = io.shared_input_s(ranks, per_rank(series), record, knee.limit_bytes_per_s, compute / alone)
    bend = {} if star is None else {star: min(alone, 1.0)}
    by_ranks = dict(zip(map(float, ranks), np.asarray(io.au(compute, reading)).tolist(), strict=True)) | bend
    return StorageCurve(name, series, sorted(by_ranks), [by_ranks[count] for count in sorted(by_ranks)])


def per_rank(series: Series) -> float:
    """Samples of a rank in a step: of those that share samples each has its part."""
    point = next(point for point in series.points if point.trials)
    return _samples(series, point) / point.ranks


def _samples(series: Series, point: ScalingPoint) -> float:
    """Of all ranks in a step."""
    return float((batches(point.trials[0]) or {"strong": series.batch})["strong"])


def compute_s(series: Series) -> float | None:
    """t_c: AU x global batch / samples per second, the median over trials; None where they have no AU."""
    known = [
        float(trial["au"]) * _samples(series, point) / float(trial["samples_per_s"])
        for point in series.points
        for trial in point.trials
        if not is_missing(trial.get("au")) and trial.get("au")
    ]
    return median(known) if known else None


def _alone(series: Series, knee: Knee) -> float | None:
    """AU below the knee, where each rank waits for its own client only; without a knee that of the smallest scale."""
    points = [point for point in series.points if point.trials and point.ranks <= (knee.ranks or 0)]
    points = points or [point for point in series.points if point.trials][:1]
    known = [float(trial["au"]) for point in points for trial in point.trials if not is_missing(trial.get("au"))]
    return median(known) if known else None
