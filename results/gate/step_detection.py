"""Did the last nights get worse? Bayes factors of a step that stays against the noise learnt before it.

For each way in which a slow-down may come (so many nights ago, by so much), the likelihood of the last nights given
the step over their likelihood without it, averaged over the ways. Under the noise such an average exceeds x in less
than 1 of x nights, whatever is averaged (Ville's inequality; Shin, Ramdas & Rinaldo 2023, "E-detectors", NEJSDS 2).
The level's own uncertainty is integrated out. An outlier, or the other of two levels, is no evidence as the noise
holds them too: only what stays adds up.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, logsumexp, polygamma

from benchsuite.results.compare.metrics import Array
from benchsuite.results.gate.noise import OUTLIERS, Mask, Noise

NIGHTS = 8
"""The last nights that are looked at; a step is looked for among their beginnings."""
SHIFTS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)
"""Steps that are averaged over, in standard deviations of a night; greater ones are taken as they appear."""
LARGE_OVER = (2, 3, 5)
"""Nights whose median tells a great step."""
WAYS = {
    (8, 1.5): 0.08,
    (8, 2.0): 0.23,
    (8, 2.5): 0.10,
    (6, 2.0): 0.03,
    (6, 2.5): 0.03,
    (4, 3.0): 0.03,
    (4, 3.5): 0.03,
    (2, 3.5): 0.13,
    (2, 4.0): 0.40,
    (2, 5.0): 0.18,
    (2, 6.0): 0.02,
    (1, 6.0): 0.005,
}
"""(Nights since the step, its size): weight. Great weight where promptness is promised: 4 sigma in 2 nights, 2 in 8."""
LARGE_WEIGHT = 0.002
NODES, NODE_WEIGHTS = np.polynomial.hermite.hermgauss(5)
TAIL_SHARE, MIN_PEAKS, SHUFFLES = 0.003, 60, 3
KNOWN_DOF, SCALE_NODES = 120.0, 5
"""A scale with more degrees of freedom is as good as known; others are integrated over."""
PRESCREEN, PRESCREEN_FLIPS = 2.0, 1.0
"""Series with no window this many standard errors above the level are not looked at closer; with two levels, less."""
OFTEN = 0.15
"""A second level with a smaller share of the nights is like outliers: the series is looked at from its first."""
NEWEST = 0.5
"""Series whose newest night is less than this many standard deviations above the level are left out, too: old bad
nights alarm once."""


@dataclass(frozen=True)
class Evidence:
    """One value per series."""

    log_factor: Array
    """Logarithm of the Bayes factor for a step; -inf where nothing speaks for one."""
    nights: Array
    """Since the step, at its likeliest."""
    shift: Array
    """The median of those nights less the level before: a difference of logarithms."""
    shift_error: Array
    """Standard error of the shift."""


def _weights() -> Array:
    found = np.full((NIGHTS, len(SHIFTS) + len(LARGE_OVER)), 1e-4)
    for (nights, shift), weight in WAYS.items():
        found[nights - 1, SHIFTS.index(shift)] = weight
    found[:, len(SHIFTS) :] = LARGE_WEIGHT
    total: Array = found / found.sum()
    return total


LOG_WEIGHTS = np.log(_weights())


def evidence(noise: Noise, recent: Array) -> Evidence:
    """The evidence that the last nights (series, NIGHTS; oldest first) are worse than the noise before them."""
    factor = np.full(len(recent), -np.inf)
    chosen = _suspicious(noise, recent)
    if chosen.any():
        factor[chosen] = _factors(noise.of(chosen), recent[chosen])
    nights = _since(noise, recent)
    window = np.where(np.arange(NIGHTS)[None] >= NIGHTS - nights[:, None], recent, np.nan)
    window[:, -1] = np.where(np.isnan(window).all(1), noise.level, window[:, -1])
    known = (~np.isnan(window)).sum(1)
    error = np.sqrt(noise.spread**2 / known + noise.level_error**2)
    return Evidence(factor, nights, np.nanmedian(window, 1) - noise.level, error)


def tail(noise: Noise, per_series: float) -> float:
    """The logarithm of the Bayes factor that a series exceeds on this share of nights, by the history itself.

    All windows of the nights that the noise was learnt from are tried as if they were the last, in their order and
    SHUFFLES times in others. Beyond the TAIL_SHARE of them the factors' logarithms fall off exponentially (peaks over
    threshold; Pickands 1975, Ann. Stat. 3). -inf where there are too few windows to tell.
    """
    if noise.nights.shape[1] < NIGHTS:
        return -np.inf
    rng = np.random.default_rng(0)
    orders = [noise.nights, *(rng.permuted(noise.nights, axis=1) for _ in range(SHUFFLES))]
    windows = np.stack([np.lib.stride_tricks.sliding_window_view(nights, NIGHTS, axis=1) for nights in orders], 1)
    series = np.repeat(np.arange(len(windows)), windows.shape[1] * windows.shape[2])
    flat = windows.reshape(-1, NIGHTS)
    num_windows = int((~np.isnan(flat[:, -1])).sum())
    parts = [slice(start, start + 4096) for start in range(0, len(flat), 4096)]
    factors = np.concatenate([evidence(noise.of(series[part]), flat[part]).log_factor for part in parts])
    peaks = np.sort(factors)[::-1][: int(TAIL_SHARE * num_windows)]
    if len(peaks) < MIN_PEAKS or not np.isfinite(peaks[-1]):
        return -np.inf
    return float(peaks[-1] + (peaks - peaks[-1]).mean() * np.log(TAIL_SHARE / per_series))


def _suspicious(noise: Noise, recent: Array) -> Mask:
    """Which series have any window above their level."""
    known = ~np.isnan(recent[:, ::-1])
    often = noise.share > OFTEN
    level, width = np.where(often, noise.level, noise.low), np.where(often, noise.spread, noise.scale)
    over = np.where(known, recent[:, ::-1] - level[:, None], 0.0)
    count = np.cumsum(known, 1)
    z = np.cumsum(over, 1) / (width[:, None] * np.sqrt(np.maximum(count, 1)))
    least = np.where(often, PRESCREEN_FLIPS, PRESCREEN)
    newest = recent[:, -1] > level + NEWEST * width
    found: Mask = (z > least[:, None]).any(1) & known[:, 0] & newest
    return found


def _since(noise: Noise, recent: Array) -> Array:
    """The likeliest number of nights since a step of any size: where sum**2 / nights is greatest (Hinkley 1970)."""
    over = np.nan_to_num(recent[:, ::-1] - noise.level[:, None])
    bound = 3 * np.median(np.abs(over[:, : LARGE_OVER[-1]]), 1) + 3 * noise.spread
    known = np.maximum(np.cumsum(~np.isnan(recent[:, ::-1]), 1), 1)
    found: Array = (np.cumsum(np.clip(over, -bound[:, None], bound[:, None]), 1) / np.sqrt(known)).argmax(1) + 1.0
    return found


def _factors(noise: Noise, recent: Array) -> Array:
    """Logarithms of the Bayes factors."""
    known = ~np.isnan(recent)
    values = np.where(known, recent, noise.level[:, None])
    errors = NODES[None] * np.sqrt(2) * noise.level_error[:, None]
    large = np.stack([np.median(values[:, -nights:], 1) - noise.low for nights in LARGE_OVER], 1)
    shifts = np.concatenate(
        [np.array(SHIFTS)[None] * noise.scale[:, None], np.maximum(large, 6 * noise.scale[:, None])], 1
    )
    offsets = np.concatenate([errors[:, None], shifts[:, :, None] + errors[:, None]], 1).reshape(len(recent), -1)
    moved = values[:, :, None] - offsets[:, None]
    likelihood = np.full((len(recent), NIGHTS, 1 + shifts.shape[1]), -np.inf)
    for scaled, weight in _scales(noise):
        density = _log_density(scaled, moved) * known[:, :, None]
        summed = np.cumsum(density[:, ::-1], 1).reshape(*likelihood.shape, len(NODES))
        part = logsumexp(summed + np.log(weight * NODE_WEIGHTS / NODE_WEIGHTS.sum()), axis=3)
        likelihood = np.logaddexp(likelihood, part)
    factors = likelihood[:, :, 1:] - likelihood[:, :, :1] + LOG_WEIGHTS[None]
    found: Array = logsumexp(factors.reshape(len(recent), -1), axis=1)
    return found


def _scales(noise: Noise) -> list[tuple[Noise, float]]:
    """The noise at scales that its nights allow, with weights; one where they are many.

    The scale is the same on all nights, so that its error cannot be left to each night's own density.
    """
    if noise.dof.min() > KNOWN_DOF:
        return [(noise, 1.0)]
    deviation = np.sqrt(polygamma(1, noise.dof / 2)) / 2
    nodes = zip(*np.polynomial.hermite.hermgauss(SCALE_NODES), strict=True)
    return [
        (replace(noise, scale=noise.scale * np.exp(np.sqrt(2) * node * deviation)), weight / np.sqrt(np.pi))
        for node, weight in nodes
    ]


def _log_density(noise: Noise, values: Array) -> Array:
    """The log density of nights (series, nights, offsets) under the noise, whose uncertain scale is integrated out."""
    dof, scale, share, rate = (part[:, None, None] for part in (noise.dof, noise.scale, noise.share, noise.rate))
    norm = np.exp(gammaln((dof + 1) / 2) - gammaln(dof / 2)) / np.sqrt(dof * np.pi) / scale

    def core(level: Array) -> Array:
        z = (values - level[:, None, None]) / scale
        density: Array = norm * np.exp(-(dof + 1) / 2 * np.log1p(z * z / dof))
        return density

    mixed = (1 - share) * core(noise.low)
    if noise.share.any():
        mixed = mixed + share * core(noise.high)
    stray = np.interp(values - noise.low[:, None, None], OUTLIERS, noise.outliers)
    found: Array = np.log((1 - rate) * mixed + rate * stray)
    return found
