"""(n) The nightly gate on simulated histories with known steps, beside asv's own rule on the same histories.

A sweep of 100 points, a value per point and night. Each point's noise is the named level times a lognormal factor of
its own (sigma 0.3). False alarms: nights without a step, after the first 100, on which any of the 100 points alarms.
Found: points whose step of so many sigma, after 300 nights, alarms within so many nights; sigma is the standard
deviation of a point's nights, rare outliers left out.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.metrics import METRICS
from results.noise import Array
from results.watch import watch

POINTS, LEARN, STEP_AT = 100, 100, 300
SWEEPS, STEPPED = 8, 16
"""Histories of a sweep per cell: 8 x 300 quiet nights, and 1600 points that step."""
DRIFT = 0.005
"""At most, over a history; the practical threshold."""
OUTLIER = np.log(1.3)
OUTLIER_SHARE = 0.05
FLIP = 0.08
PROMISED = ((4.0, 2), (2.0, 8))
"""(sigma, nights)"""
ASV_NIGHTS, ASV_HISTORY = 20, 120
"""asv's search grows with the square of the history: it is asked about fewer nights, of shorter histories."""
ASV_THRESHOLD = 0.05
"""asv's default."""
CELLS = (
    ("plain", 0.01),
    ("plain", 0.03),
    ("plain", 0.10),
    ("drift", 0.01),
    ("outliers", 0.01),
    ("outliers", 0.03),
    ("outliers", 0.10),
    ("bimodal", 0.01),
    ("bimodal", 0.03),
    ("heavy tails", 0.03),
)


@dataclass(frozen=True)
class Rates:
    """What a rule does on one kind of history."""

    false_alarms: float
    """Share of nights."""
    num_nights: int
    found: tuple[float, ...]
    """Of PROMISED."""


def history(rng: np.random.Generator, kind: str, level: float, num_nights: int) -> tuple[Array, Array]:
    """Logarithms (points, nights), larger for worse, and each point's sigma."""
    shape = (POINTS, num_nights)
    sigma = level * np.exp(rng.normal(0, 0.3, POINTS))
    values = rng.normal(0, 1, shape) * sigma[:, None]
    if kind == "heavy tails":
        values = rng.standard_t(4, shape) / np.sqrt(2) * sigma[:, None]
    if kind == "drift":
        values += rng.uniform(-DRIFT, DRIFT, (POINTS, 1)) * np.linspace(0, 1, num_nights)[None]
    if kind == "outliers":
        values += OUTLIER * (rng.random(shape) < OUTLIER_SHARE)
    if kind == "bimodal":
        share = rng.choice([0.2, 0.5, 0.8], POINTS)
        values += FLIP * (rng.random(shape) < share[:, None])
        sigma = np.sqrt(sigma**2 + share * (1 - share) * FLIP**2)
    return values, sigma


def ours(kind: str, level: float) -> Rates:
    """The gate's rates."""
    speed = METRICS[0]
    how = (0, float(np.log1p(speed.practical)), POINTS / speed.gate_share)
    quiet, found = [], []
    for seed in range(SWEEPS):
        values, _ = history(np.random.default_rng([seed, 0]), kind, level, LEARN + 300)
        quiet.append(watch(values, *how, first=LEARN).alarm[:, LEARN:].any(0))
    for seed in range(STEPPED):
        hits = []
        for sigmas, nights in PROMISED:
            values, sigma = history(np.random.default_rng([seed, nights]), kind, level, STEP_AT + nights)
            values[:, STEP_AT:] += sigmas * sigma[:, None]
            hits.append(watch(values, *how, first=STEP_AT).alarm[:, STEP_AT:].any(1).mean())
        found.append(hits)
    nights = np.concatenate(quiet)
    return Rates(float(nights.mean()), len(nights), tuple(np.mean(found, 0)))


def asv_alarms(values: Array) -> bool:
    """Whether asv would report a regression of these nights: the steps it detects, by its rule and default."""
    from asv.step_detect import detect_regressions, detect_steps

    steps = detect_steps([*np.exp(values)])
    latest, _, regressions = detect_regressions(steps, threshold=ASV_THRESHOLD)
    return bool(latest is not None and regressions)


def asvs(kind: str, level: float) -> Rates:
    """The rates of asv's rule, night by night on histories of the same kind."""
    values, sigma = history(np.random.default_rng([0, 0]), kind, level, ASV_HISTORY + 300)
    picked = np.linspace(ASV_HISTORY, values.shape[1] - 1, ASV_NIGHTS).astype(int)
    quiet = [any(asv_alarms(row[night - ASV_HISTORY : night + 1]) for row in values) for night in picked]
    found = []
    for sigmas, nights in PROMISED:
        stepped = values[:, : ASV_HISTORY + nights].copy()
        stepped[:, ASV_HISTORY:] += sigmas * sigma[:, None]
        ends = range(ASV_HISTORY + 1, ASV_HISTORY + nights + 1)
        found.append(np.mean([any(asv_alarms(row[:end]) for end in ends) for row in stepped]))
    return Rates(float(np.mean(quiet)), len(picked), tuple(float(share) for share in found))


def _cell(cell: tuple[str, float]) -> tuple[Rates, Rates]:
    return ours(*cell), asvs(*cell)


def measure(cells: Iterable[tuple[str, float]] = CELLS) -> dict[tuple[str, float], tuple[Rates, Rates]]:
    """Ours and asv's rates by kind and level, on all cores."""
    asked = [*cells]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor() as pool:
        return dict(zip(asked, pool.map(_cell, asked), strict=True))


def table(found: dict[tuple[str, float], tuple[Rates, Rates]]) -> str:
    """As Markdown."""
    promised = [f"{sigmas:g} sigma in {nights} nights" for sigmas, nights in PROMISED]
    heads = ["false alarms", *promised]
    lines = [
        "| noise | level | " + " | ".join([*heads, *(f"asv: {head}" for head in heads)]) + " |",
        "|---|---:|" + "---:|" * (2 * len(heads)),
    ]
    for (kind, level), both in found.items():
        cells = [text for rates in both for text in _texts(rates)]
        lines.append(f"| {kind} | {level:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _texts(rates: Rates) -> list[Any]:
    return [f"{rates.false_alarms:.1%} of nights", *(f"{share:.1%}" for share in rates.found)]
