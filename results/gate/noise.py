"""How noisy the nights of each series are, learnt from its history and from that of the whole sweep.

A series is one metric of one point, a value per night: the logarithm, with larger for worse. Arrays are (series,
nights), NaN where a night has no value. The noise of a series is a mixture: one or two normal levels of the same
scale (a trial may flip between two levels by the node it got), and rare outliers. What a short history cannot tell is
drawn towards the sweep: scales by the moderated variance of Smyth (2004, "Linear models and empirical Bayes methods",
Stat. Appl. Genet. Mol. Biol. 3), slopes by DerSimonian & Laird (1986), the outliers' rate and shape by pooling.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from benchsuite.results.compare.metrics import Array

Mask = NDArray[np.bool_]

FAR = 4.0
"""Robust standard deviations beyond which a night counts as an outlier."""
SHORT_NIGHTS = 8
"""A history of so many nights tells the deviation badly: twice as many deviations are asked of it."""
MIN_SHARE = 0.03
"""A second level holds at least this share of the nights; rarer ones are outliers."""
MIN_SEPARATION = 3.0
"""Levels closer than this many of their own standard deviations are one."""
MIN_SCALE = 1e-4
MIN_DRIFT_NIGHTS, MIN_FLIP_NIGHTS = 40, 20
"""Shorter histories tell no drift, and no second level."""
MIN_OUTLIER_RATE = 0.003
POOLED_NIGHTS = 10
"""The sweep's rate of outliers weighs as much as this many nights of the series."""
MAX_PRIOR_DOF = 200.0
EM_ROUNDS = 12
STEP = 0.005
OUTLIERS = np.arange(-1.5, 1.5 + STEP / 2, STEP)
"""Grid of distances from the level over which the density of outliers is known."""


@dataclass(frozen=True)
class Noise:
    """What the nights of each series look like; every field has one value per series, where not said otherwise."""

    low: Array
    """The level, or the better of two."""
    high: Array
    share: Array
    """Share of the nights at the worse level; 0 where there is one level."""
    scale: Array
    """Standard deviation of a night around its level."""
    dof: Array
    """Degrees of freedom behind the scale, the sweep's included."""
    rate: Array
    """Share of the nights that are outliers."""
    level_error: Array
    """Standard error of the level, its drift since included."""
    nights: Array
    """The nights it was learnt from (series, nights), at today's level: without their drift."""
    outliers: Array
    """Density of outliers over OUTLIERS, the same for all series."""

    def of(self, chosen: Any) -> "Noise":
        """Return the noise of some of the series; `chosen` is a mask over them, or their positions."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Noise(**{name: value if name == "outliers" else value[chosen] for name, value in values.items()})

    @property
    def level(self) -> Array:
        """Mean over the levels."""
        return self.low + self.share * (self.high - self.low)

    @property
    def spread(self) -> Array:
        """Standard deviation of the nights, flips between levels included, outliers not."""
        return np.sqrt(self.scale**2 + self.share * (1 - self.share) * (self.high - self.low) ** 2)


@dataclass(frozen=True)
class _Mixture:
    low: Array
    high: Array
    share: Array
    scale: Array
    rate: Array
    likelihood: Array
    """Logarithm, summed over the nights."""
    num_core: Array
    """Nights that are no outliers."""


def learn(nights: Array, ahead: int = 0) -> Noise:
    """The noise of each series, its level carried `ahead` nights beyond the last; each needs a few values."""
    flat, drift_error, own_slope = _without_drift(nights, ahead)
    known, values = ~np.isnan(flat), np.nan_to_num(flat)
    count = known.sum(1)
    centre = np.nanmedian(flat, 1)
    robust = np.maximum(1.4826 * np.nanmedian(np.abs(flat - centre[:, None]), 1), MIN_SCALE)
    low, high, near = _two_levels(values, known)
    within = np.maximum(1.4826 * np.nanmedian(np.where(known, np.abs(near), np.nan), 1), MIN_SCALE)
    share = (known & (np.abs(values - high[:, None]) < np.abs(values - low[:, None]))).sum(1) / count
    apart = (high - low > FAR * within) & (np.abs(share - 0.5) < 0.5 - MIN_SHARE) & (count >= MIN_FLIP_NIGHTS)
    distance = np.where(apart[:, None], near, values - centre[:, None])
    width = np.where(apart, within, robust)
    far = known & (np.abs(distance) > (FAR * width * (1 + SHORT_NIGHTS / count))[:, None])
    smoothing = 1.5 * float(np.median(width)) * max(float(far.sum()), 1.0) ** -0.2
    outliers = _outlier_density(distance[far], max(smoothing, STEP))
    rate = np.full(len(nights), max((far.sum() + 0.5) / (known.sum() + 100), MIN_OUTLIER_RATE))
    one = _fit(values, known, _Mixture(centre, centre, 0 * centre, robust, rate, rate, rate), outliers, 1)
    two = _fit(values, known, _Mixture(low, high, share, within, rate, rate, rate), outliers, 2)
    better = two.likelihood - one.likelihood > np.log(count) + 2  # two parameters more, by BIC, and a margin
    better &= count >= MIN_FLIP_NIGHTS
    flips = better & (two.high - two.low > MIN_SEPARATION * two.scale) & (np.abs(two.share - 0.5) < 0.5 - MIN_SHARE)
    names = ("low", "high", "share", "scale", "rate", "num_core")
    found = {name: np.where(flips, getattr(two, name), getattr(one, name)) for name in names}
    num_core = np.maximum(found.pop("num_core"), 1.0)
    scale, dof = found.pop("scale"), np.maximum(num_core - 1 - flips - own_slope, 1.0)
    for alike in (flips, ~flips):
        scale[alike], dof[alike] = _moderated(scale[alike], dof[alike])
    error = np.sqrt(scale**2 / num_core + drift_error**2)
    return Noise(**found, scale=scale, dof=dof, level_error=error, nights=flat, outliers=outliers)


def _without_drift(nights: Array, ahead: int) -> tuple[Array, Array, Array]:
    """The nights brought to the level of `ahead` nights after the last, that correction's standard error, and how far
    each series has a slope of its own (0 to 1).

    Slopes are drawn towards the mean slope of the sweep as far as they differ no more than their errors explain.
    """
    known = ~np.isnan(nights)
    centre = np.nanmedian(nights, 1)[:, None]
    width = np.maximum(1.4826 * np.nanmedian(np.abs(nights - centre), 1), MIN_SCALE)[:, None]
    clipped = np.where(known, np.clip(nights - centre, -3 * width, 3 * width), 0.0)
    when = np.where(known, np.arange(nights.shape[1], dtype=np.float64)[None], 0.0)
    count = known.sum(1)
    middle = when.sum(1) / count
    turns = np.where(known, when - middle[:, None], 0.0)
    squares = np.maximum((turns**2).sum(1), 1.0)
    slope = (turns * clipped).sum(1) / squares
    rest = np.where(known, clipped - clipped.sum(1)[:, None] / count[:, None] - slope[:, None] * turns, 0.0)
    variance = np.maximum((rest**2).sum(1) / np.maximum(count - 2, 1), MIN_SCALE**2) / squares
    mean, between = _pooled(slope, variance)
    weight = between / (between + variance)
    drawn = mean + weight * (slope - mean)
    if nights.shape[1] < MIN_DRIFT_NIGHTS:
        drawn, weight = 0 * drawn, 0 * weight
    moved = nights.shape[1] - 1 + ahead - np.arange(nights.shape[1])
    reach = nights.shape[1] - 1 + ahead - middle
    return nights + drawn[:, None] * moved[None], np.sqrt(weight * variance) * reach, weight


def _pooled(slope: Array, variance: Array) -> tuple[float, float]:
    """Mean slope of a sweep, drawn to zero as far as its error explains it, and the variance between series."""
    weights = 1 / variance
    mean = float((weights * slope).sum() / weights.sum())
    excess = float((weights * (slope - mean) ** 2).sum()) - (len(slope) - 1)
    norm = float(weights.sum() - (weights**2).sum() / weights.sum())
    between = max(0.0, excess / norm) if norm > 0 and len(slope) > 2 else 0.0
    error = 1 / float((1 / (variance + between)).sum())
    return mean * max(0.0, 1 - 4 * error / mean**2) if mean else 0.0, between


def _two_levels(values: Array, known: Mask) -> tuple[Array, Array, Array]:
    """Two centres by Lloyd's algorithm, and each night's distance from the nearer."""
    masked = np.where(known, values, np.nan)
    low, high = np.nanquantile(masked, 0.1, 1), np.nanquantile(masked, 0.9, 1)
    for _ in range(8):
        upper = known & (np.abs(values - high[:, None]) < np.abs(values - low[:, None]))
        lower = known & ~upper
        high = np.where(upper.any(1), (upper * values).sum(1) / np.maximum(upper.sum(1), 1), high)
        low = (lower * values).sum(1) / np.maximum(lower.sum(1), 1)
    return low, high, np.where(upper, values - high[:, None], values - low[:, None])


def _outlier_density(distances: Array, width: float) -> Array:
    """Density of the sweep's outliers by distance, smoothed; five outliers' worth of it spread evenly."""
    edges = np.append(OUTLIERS - STEP / 2, OUTLIERS[-1] + STEP / 2)
    counts, _ = np.histogram(np.clip(distances, OUTLIERS[0], OUTLIERS[-1]), bins=edges)
    kernel = np.exp(-0.5 * (OUTLIERS / width) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same")
    density: Array = (smooth / STEP + 5 / (OUTLIERS[-1] - OUTLIERS[0])) / (smooth.sum() + 5)
    return density


def _fit(values: Array, known: Mask, start: _Mixture, outliers: Array, num_levels: int) -> _Mixture:
    """The mixture by expectation and maximisation."""
    low, high, share, scale, rate = start.low, start.high, start.share, start.scale, start.rate
    count = known.sum(1)
    for _ in range(EM_ROUNDS):
        stray = rate[:, None] * np.interp(values - low[:, None], OUTLIERS, outliers)
        lower = ((1 - rate) * (1 - share))[:, None] * _normal(values, low, scale)
        upper = ((1 - rate) * share)[:, None] * _normal(values, high, scale)
        total = np.where(known, stray + lower + upper, 1.0)
        at_low, at_high = np.where(known, lower / total, 0.0), np.where(known, upper / total, 0.0)
        num_low, num_high = at_low.sum(1), at_high.sum(1)
        core = num_low + num_high
        low = np.where(num_low > 0, (at_low * values).sum(1) / np.maximum(num_low, 1e-9), low)
        if num_levels == 2:
            high = np.where(num_high > 0, (at_high * values).sum(1) / np.maximum(num_high, 1e-9), high)
            share = num_high / np.maximum(core, 1e-9)
        squares = (at_low * (values - low[:, None]) ** 2 + at_high * (values - high[:, None]) ** 2).sum(1)
        scale = np.maximum(np.sqrt(squares / np.maximum(core - num_levels, 1)), MIN_SCALE)
        rate = (count - core + POOLED_NIGHTS * start.rate) / (count + POOLED_NIGHTS)
    return _Mixture(low, high if num_levels == 2 else low, share, scale, rate, np.log(total).sum(1), core)


def _normal(values: Array, level: Array, scale: Array) -> Array:
    z = (values - level[:, None]) / scale[:, None]
    density: Array = np.exp(-0.5 * z * z) / (scale[:, None] * np.sqrt(2 * np.pi))
    return density


def _moderated(scale: Array, dof: Array) -> tuple[Array, Array]:
    """Scales drawn towards the sweep's, and the degrees of freedom behind them (Smyth 2004, section 6.2).

    The scales' own variance is taken a standard error higher, so that a quiet sweep is not made too quiet.
    """
    if len(scale) < 2:
        return scale, dof
    told = 2 * np.log(scale) - digamma(dof / 2) + np.log(dof / 2)
    variance = float(told.var(ddof=1))
    excess = variance * (1 + np.sqrt(2 / (len(told) - 1))) - float(polygamma(1, dof / 2).mean())
    prior = min(2 * _inverse_trigamma(excess), MAX_PRIOR_DOF) if excess > 0 else MAX_PRIOR_DOF
    pooled = np.exp(told.mean() + digamma(prior / 2) - np.log(prior / 2))
    return np.sqrt((prior * pooled + dof * scale**2) / (prior + dof)), dof + prior


def _inverse_trigamma(value: float) -> float:
    """Invert the trigamma function by Newton's method on its reciprocal (Smyth 2004, appendix)."""
    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, found))
        found += trigamma * (1 - trigamma / value) / float(polygamma(2, found))
    return found
