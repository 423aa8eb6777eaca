"""The knee of a scaling series: ranks up to which throughput grows with them, and the limit it meets there.

Least squares of log min(a N, B) over all repeats; the best of all splits into rising and flat numbers of ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t as student

from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import rate
from benchsuite.results.scaling.laws import Floats
from benchsuite.results.scaling.series import Row, ScalingPoint, Series, shared_settings
from benchsuite.results.scaling.staging import STAGING

MIN_SCALES, MIN_FLAT = 3, 2
FLAT_SHARE = 0.15
"""Flat: between the first and the last flat number of ranks, throughput grows by no more than this of what ranks do."""
MAX_ERROR = 0.15
"""Root mean square of measured / fitted - 1 above which min(a N, B) is not what was measured."""
NEAR_MOST = 0.9
"""A knee beyond this share of the most ranks measured is no knee yet."""
COARSE = 0.1
"""Half an interval from which on one digit behind the point is enough."""
NOT_SHARED = "its samples are not read from storage"


@dataclass(frozen=True)
class Knee:
    """Where throughput = min(a N, B) bends; with `problem` there is none, and all else is None."""

    ranks: float | None = None
    """B / a."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval; None with too few repeats."""
    per_rank: float | None = None
    """a, samples/s of a rank below it."""
    limit: float | None = None
    """B, samples/s of all ranks above it."""
    relative_error: float | None = None
    """Root mean square over repeats of measured / fitted - 1."""
    limit_bytes_per_s: float | None = None
    """B in bytes as stored; None where they were not counted."""
    problem: str | None = None


def fit_knee(rates: Mapping[int, Sequence[float]]) -> Knee:
    """The knee of min(a N, B); `rates`: samples per second of each repeat, by number of ranks.

    The interval is that of log B - log a, two means of independent repeats with one variance (Student's t, two degrees
    of freedom lost); what the law misses counts as noise.
    """
    known = sorted(n for n, repeats in rates.items() if len(repeats))
    if len(known) < MIN_SCALES:
        return Knee(problem=f"a knee needs {MIN_SCALES} numbers of ranks, {len(known)} measured")
    ranks = np.array([n for n in known for _ in rates[n]], dtype=np.float64)
    measured = np.log([rate for n in known for rate in rates[n]])
    fits = [_split(ranks, measured, last) for last in known[:-1]]
    slope, top, last = min(fits, key=lambda fit: float(np.sum(_residuals(ranks, measured, *fit[:2]) ** 2)))
    flat = [n for n in known if n > last]
    error = float(np.sqrt(np.mean(np.expm1(_residuals(ranks, measured, slope, top)) ** 2)))
    problem = _why_none(rates, flat, math.exp(top - slope), error)
    if problem:
        return Knee(problem=problem)
    width = _half_width(ranks, measured, slope, top, last)
    low, high = (None, None) if width is None else (math.exp(top - slope + sign * width) for sign in (-1, 1))
    return Knee(math.exp(top - slope), low, high, math.exp(slope), math.exp(top), error)


def _split(ranks: Floats, measured: Floats, last: int) -> tuple[float, float, int]:
    """log a over the ranks up to `last`, log B over those beyond."""
    rising = ranks <= last
    slope, top = np.mean(measured[rising] - np.log(ranks[rising])), np.mean(measured[~rising])
    return float(slope), float(top), last


def _residuals(ranks: Floats, measured: Floats, slope: float, top: float) -> Floats:
    return np.asarray(measured - np.minimum(slope + np.log(ranks), top), dtype=np.float64)


def _why_none(rates: Mapping[int, Sequence[float]], flat: Sequence[int], knee: float, error: float) -> str | None:
    most = max(rates)
    first, last = (float(np.median(rates[n])) for n in (flat[0], flat[-1]))
    if knee > NEAR_MOST * most:
        return f"not saturated: throughput grows with the ranks up to {most}"
    if len(flat) < MIN_FLAT:
        return f"not told: only {most} ranks lie beyond a knee; measure {2 * most} as well"
    if last / first - 1 > FLAT_SHARE * (flat[-1] / flat[0] - 1):
        return f"not saturated: throughput still grows from {flat[0]} to {flat[-1]} ranks"
    if error > MAX_ERROR:
        return f"not told: min(a N, B) misses what was measured by {error:.0%}"
    return None


def _half_width(ranks: Floats, measured: Floats, slope: float, top: float, last: int) -> float | None:
    """Return half the width of the 95 % interval of log B - log a; None where no repeat is left to tell the noise."""
    spare = len(ranks) - 2
    rising = int(np.sum(ranks <= last))
    if spare < 1 or len(ranks) == len(np.unique(ranks)):
        return None
    variance = float(np.sum(_residuals(ranks, measured, slope, top) ** 2)) / spare
    return float(student.ppf(0.975, spare) * np.sqrt(variance * (1 / rising + 1 / (len(ranks) - rising))))


def input_knee(series: Series) -> Knee:
    """The knee of a series that shared input holds back: where its trials read and wait for it beyond the knee."""
    if not reads_source(series):
        return Knee(problem=NOT_SHARED)
    found = fit_knee(series.rates)
    if found.ranks is None:
        return found
    beyond = [point for point in series.points if point.trials and point.ranks > found.ranks]
    if not all(map(_waits_for_input, beyond)):
        return Knee(problem="throughput is flat, but not for want of input: see what it is lost to")
    record = record_bytes(series)
    limit = None if record is None or found.limit is None else found.limit * record
    return replace(found, limit_bytes_per_s=limit)


def _waits_for_input(point: ScalingPoint) -> bool:
    """Tell by the verdict of its trials, or by what most of the lost throughput went to."""
    if any(trial.get("bottleneck") == "storage" for trial in point.trials):
        return True
    known = {name: share for name, share in point.losses.items() if share is not None}
    return "load" in known and known["load"] == max(known.values())


def record_bytes(series: Series) -> float | None:
    """Bytes of a sample as stored, the mean over trials; None where they were not counted."""
    known = [_record(trial) for point in series.points for trial in point.trials]
    told = [size for size in known if size is not None]
    return float(np.mean(told)) if told else None


def _record(trial: Row) -> float | None:
    read, rate = trial.get("io_bytes_per_s"), trial.get("samples_per_s")
    return None if is_missing(read) or is_missing(rate) or not read or not rate else float(read) / float(rate)


def reads_source(series: Series) -> bool:
    """Whether a series reads samples that are stored."""
    return series.example.get("spec.data.source") in (None, "storage")


def staged(series: Series) -> bool:
    """Whether a series reads from node-local copies."""
    return series.example.get("spec.data.staging") in ("copy", "lazy")


def knee_line(series: Series) -> str | None:
    """Where a series' input saturates, in words; None where it does not."""
    knee = input_knee(series)
    if knee.ranks is None or knee.limit is None:
        return None
    what = "the node-local copy" if staged(series) else "the file system"
    limit = "" if knee.limit_bytes_per_s is None else f", {rate(knee.limit_bytes_per_s)}"
    return f"{what} saturates at {_in_words(knee.ranks, knee)}: {knee.limit:.3g} samples/s{limit}"


def _in_words(ranks: float, knee: Knee) -> str:
    if knee.low is None or knee.high is None:
        return f"{ranks:.1f} ranks (knee fit, one repeat: no interval)"
    half = max(knee.high - ranks, ranks - knee.low)
    digits = 1 if half >= COARSE else 2
    return f"{ranks:.{digits}f} ranks (knee fit ±{half:.{digits}f}, 95 %)"


def staging_pairs(found: Sequence[Series]) -> list[tuple[Series, list[Series]]]:
    """Each series that reads from its source, with those that differ from it in staging alone."""
    alike: dict[object, list[Series]] = {}
    for series in found:
        if staged(series):
            alike.setdefault(_but_staging(series), []).append(series)
    return [
        (series, alike.get(_but_staging(series), [])) for series in found if reads_source(series) and not staged(series)
    ]


def _but_staging(series: Series) -> object:
    left = {**series.example} | dict.fromkeys(STAGING)
    return series.kind, series.batch, shared_settings(left)
