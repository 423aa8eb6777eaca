"""(n) The nightly gate on simulated histories with known steps, beside asv's own rule on the same histories.

A sweep of 100 points, a value per point and night. Each point's noise is the named level times a lognormal factor of
its own (sigma 0.3). False alarms: nights without a step, after the first 100, on which any of the 100 points alarms.
Found: points whose step of so many sigma, after 300 nights, alarms within so many nights; sigma is the standard
deviation of a point's nights: rare outliers left out, or of all nights.

The rule of halved rates is judged apart: on the same quiet histories from their second night on, on noisier ones, and
on points that fall to 45 % of their rate. A night's value stands for all of its repeats, which favours no rule.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bench.tables import goal
from benchsuite.results.compare.metrics import METRICS, Array
from benchsuite.results.gate.alarms import FALSE_ALARMS, watch
from benchsuite.results.gate.halved import HALF, nights_halved

MAX_FALSE_ALARMS, MIN_FOUND = 0.01, 0.95
POINTS, LEARN, QUIET, STEP_AT = 100, 100, 300, 300
SWEEPS, STEPPED = 8, 16
"""Histories of a sweep per cell: 8 x 300 quiet nights, and 1600 points that step."""
DRIFT = 0.005
"""The largest drift over a history; the practical threshold."""
OUTLIER = np.log(1.3)
OUTLIER_SHARE = 0.05
FLIP = 0.08
PROMISED = ((4.0, 2), (2.0, 8))
"""(sigma, nights)"""
BEST_WINDOWS = 500_000
BASELINES = (7, 14, 30, 60, 120, 240)
ASV_NIGHTS, ASV_HISTORY = 20, 120
"""asv's search grows with the square of the history: it is asked about fewer nights, of shorter histories."""
ASV_THRESHOLD = 0.05
"""asv's default."""
FALLEN = 0.45
"""Of its rate is left to a point that falls."""
HALVED_LEVELS, HALVED_AFTER = (0.03, 0.10, 0.20, 0.30), (1, 2, 6, 30)
"""Levels of plain noise, and nights before the fall."""
HALVED_SWEEPS, HALVED_NIGHTS = 4, 100
CELLS = (
    ("plain", 0.01),
    ("plain", 0.03),
    ("plain", 0.10),
    ("drift", 0.01),
    ("outliers", 0.01),
    ("outliers", 0.03),
    ("outliers", 0.10),
    ("outliers, sigma of all nights", 0.01),
    ("outliers, sigma of all nights", 0.03),
    ("outliers, sigma of all nights", 0.10),
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
    """The share found of each level of PROMISED."""
    halved: float = 0.0
    """Share of the nights on which the rule of halved rates alarms."""


@dataclass(frozen=True)
class Truth:
    """What points' nights are drawn from, a value per point: a share of them lies higher by a jump."""

    scale: Array
    share: Array
    jump: float
    heavy: bool
    counted: bool
    """Whether nights that lie higher are part of the noise that steps are measured in."""

    @property
    def sigma(self) -> Array:
        """Standard deviation of the nights."""
        return np.sqrt(self.scale**2 + self.counted * self.share * (1 - self.share) * self.jump**2)

    def draw(self, rng: np.random.Generator, num_nights: int) -> Array:
        """Logarithms (points, nights), larger for worse."""
        shape = (len(self.scale), num_nights)
        core = rng.standard_t(4, shape) / np.sqrt(2) if self.heavy else rng.normal(0, 1, shape)
        values: Array = core * self.scale[:, None] + self.jump * (rng.random(shape) < self.share[:, None])
        return values

    def log_density(self, values: Array) -> Array:
        """Of values (points, nights)."""
        scale, share = self.scale[:, None], self.share[:, None]
        law = stats.t(4, scale=scale / np.sqrt(2)) if self.heavy else stats.norm(scale=scale)
        found: Array = law.logpdf(values)
        if share.any():
            found = np.logaddexp(np.log(1 - share) + found, np.log(share) + law.logpdf(values - self.jump))
        return found


def truth(rng: np.random.Generator, kind: str, level: float, num_points: int) -> Truth:
    """What the points of a sweep are like."""
    scale = level * np.exp(rng.normal(0, 0.3, num_points))
    share, jump = np.zeros(num_points), 0.0
    if kind.startswith("outliers"):
        share, jump = np.full(num_points, OUTLIER_SHARE), OUTLIER
    if kind == "bimodal":
        share, jump = rng.choice([0.2, 0.5, 0.8], num_points), FLIP
    return Truth(scale, share, jump, kind == "heavy tails", counted=kind != "outliers")


def history(rng: np.random.Generator, kind: str, level: float, num_nights: int) -> tuple[Array, Array]:
    """Logarithms (points, nights), larger for worse, and each point's sigma."""
    known = truth(rng, kind, level, POINTS)
    values = known.draw(rng, num_nights)
    if kind == "drift":
        values += rng.uniform(-DRIFT, DRIFT, (POINTS, 1)) * np.linspace(0, 1, num_nights)[None]
    return values, known.sigma


def best(kind: str, level: float) -> Rates:
    """The most that any rule can find at the promised false alarms (Neyman & Pearson 1933, Phil. Trans. A 231).

    Its rule knows each point's noise, the step's size and the night it may have come, and looks for nothing else: the
    likelihood ratio of the nights since. To alarm on any of k nights it may raise k nights' share of false alarms.
    """
    found = []
    for sigmas, nights in PROMISED:
        rng = np.random.default_rng([1, nights])
        known = truth(rng, kind, level, BEST_WINDOWS)
        quiet = known.draw(rng, nights)
        shift = sigmas * known.sigma[:, None]
        limit = np.quantile(_ratio(known, quiet, shift), 1 - nights * FALSE_ALARMS / POINTS)
        found.append(float((_ratio(known, known.draw(rng, nights) + shift, shift) > limit).mean()))
    return Rates(FALSE_ALARMS, 0, tuple(found))


def _ratio(known: Truth, values: Array, shift: Array) -> Array:
    ratio: Array = (known.log_density(values - shift) - known.log_density(values)).sum(1)
    return ratio


def ours(kind: str, level: float) -> Rates:
    """The gate's rates."""
    speed = METRICS[0]
    how = (0, float(np.log1p(speed.practical)), POINTS / speed.gate_share)
    quiet, found, halved = [], [], []
    for seed in range(SWEEPS):
        values, _ = history(np.random.default_rng([seed, 0]), kind, level, LEARN + QUIET)
        halved.append(halved_alarms(values))
        quiet.append(watch(values, *how, first=LEARN).alarm[:, LEARN:].any(0))
    for seed in range(STEPPED):
        hits = []
        for sigmas, nights in PROMISED:
            values, sigma = history(np.random.default_rng([seed, nights]), kind, level, STEP_AT + nights)
            values[:, STEP_AT:] += sigmas * sigma[:, None]
            hits.append(watch(values, *how, first=STEP_AT).alarm[:, STEP_AT:].any(1).mean())
        found.append(hits)
    nights = np.concatenate(quiet)
    return Rates(float(nights.mean()), len(nights), tuple(np.mean(found, 0)), float(np.mean(halved)))


def halved_alarms(values: Array) -> Array:
    """Whether any point has half its rate or less, for each night from the second on."""
    lowest = np.minimum.accumulate(values, 1)
    found = np.zeros(values.shape[1] - 1)
    for night in range(1, values.shape[1]):
        rows = np.flatnonzero(values[:, night] - lowest[:, night - 1] >= HALF)  # others cannot be
        found[night - 1] = any(nights_halved(*[values[row, : night + 1]] * 2, first=0) for row in rows)
    return found


@dataclass(frozen=True)
class Halved:
    """What the rule of halved rates does on plain noise."""

    false_alarms: float
    """Share of nights."""
    found: tuple[float, ...]
    """The share of fallen points found in their first night, after each of HALVED_AFTER nights."""


def halved(level: float) -> Halved:
    """The rates of that rule, which learns no noise."""
    quiet, found = [], []
    for seed in range(HALVED_SWEEPS):
        values, _ = history(np.random.default_rng([seed, 0]), "plain", level, HALVED_NIGHTS)
        quiet.append(halved_alarms(values))
        fallen = values - np.log(FALLEN)
        joined = [np.append(values[:, :nights], fallen[:, nights : nights + 1], 1) for nights in HALVED_AFTER]
        found.append([np.mean([nights_halved(row, row, first=0) > 0 for row in some]) for some in joined])
    return Halved(float(np.mean(quiet)), tuple(float(share) for share in np.mean(found, 0)))


def after(num_nights: int) -> tuple[float, ...]:
    """What is found of PROMISED where a baseline of so many nights is all that is known: plain noise of 3 %."""
    speed = METRICS[0]
    hits = []
    for seed, (sigmas, nights) in product(range(STEPPED), PROMISED):
        values, sigma = history(np.random.default_rng([seed, nights]), "plain", 0.03, num_nights + nights)
        values[:, num_nights:] += sigmas * sigma[:, None]
        how = (num_nights, float(np.log1p(speed.practical)), POINTS / speed.gate_share)
        hits.append(float(watch(values, *how, first=num_nights).alarm[:, num_nights:].any(1).mean()))
    return tuple(float(share) for share in np.reshape(hits, (STEPPED, len(PROMISED))).mean(0))


def asv_alarms(values: Array) -> bool:
    """Whether asv would report a regression of these nights: the steps it detects, by its rule and default."""
    from asv.step_detect import detect_regressions, detect_steps

    steps = detect_steps([*np.exp(values)])
    latest, _, regressions = detect_regressions(steps, threshold=ASV_THRESHOLD)
    return bool(latest is not None and regressions)


def asvs(kind: str, level: float) -> Rates:
    """The rates of asv's rule, night by night on the first histories that `ours` judges, of which it sees the end."""
    values, _ = history(np.random.default_rng([0, 0]), kind, level, LEARN + QUIET)
    picked = np.linspace(ASV_HISTORY, values.shape[1] - 1, ASV_NIGHTS).astype(int)
    quiet = [any(asv_alarms(row[night - ASV_HISTORY : night + 1]) for row in values) for night in picked]
    found = []
    for sigmas, nights in PROMISED:
        stepped, sigma = history(np.random.default_rng([0, nights]), kind, level, STEP_AT + nights)
        stepped[:, STEP_AT:] += sigmas * sigma[:, None]
        ends = range(STEP_AT + 1, STEP_AT + nights + 1)
        found.append(np.mean([any(asv_alarms(row[end - ASV_HISTORY : end]) for end in ends) for row in stepped]))
    return Rates(float(np.mean(quiet)), len(picked), tuple(float(share) for share in found))


@dataclass(frozen=True)
class Cell:
    """All rules on one kind of history."""

    ours: Rates
    best: Rates
    asv: Rates


def _cell(cell: tuple[str, float]) -> Cell:
    return Cell(ours(*cell), best(*cell), asvs(*cell))


def measure(cells: Iterable[tuple[str, float]] = CELLS) -> dict[tuple[str, float], Cell]:
    """Measure each kind at each level, on all cores."""
    asked = [*cells]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor() as pool:
        return dict(zip(asked, pool.map(_cell, asked), strict=True))


def table(found: dict[tuple[str, float], Cell]) -> str:
    """The results as a Markdown table."""
    promised = [f"{sigmas:g} sigma in {nights} nights" for sigmas, nights in PROMISED]
    heads = ["false alarms", "of halved rates", *promised, *(f"at most: {one}" for one in promised)]
    heads += ["asv: false alarms"]
    heads += [f"asv: {one}" for one in promised]
    lines = ["| noise | level | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(heads)]
    for (kind, level), cell in found.items():
        false, *shares = _texts(cell.ours)
        cells = [false, f"{cell.ours.halved:.2%}", *shares, *_texts(cell.best)[1:], *_texts(cell.asv)]
        lines.append(f"| {kind} | {level:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _texts(rates: Rates) -> list[Any]:
    return [f"{rates.false_alarms:.1%} of nights", *(f"{share:.1%}" for share in rates.found)]


def show(_folder: Path) -> None:
    """Print the table of all rules, and whether the gate keeps its promises."""
    print("(n) the nightly gate on simulated histories of 100 points, beside asv's own rule; steps of sigma")
    found = measure()
    print(table(found))
    print("    plain noise, by the nights of the baseline where nothing else is known:")
    for num_nights in BASELINES:
        told = zip(PROMISED, after(num_nights), strict=True)
        print(f"    {num_nights}: " + ", ".join(f"{s:g} sigma within {n} nights {share:.1%}" for (s, n), share in told))
    show_halved(max(cell.ours.halved for cell in found.values()))
    alarms = [cell.ours.false_alarms for cell in found.values()]
    print(goal(max(alarms) < MAX_FALSE_ALARMS, f"false alarms on less than {MAX_FALSE_ALARMS:.0%} of nights"))
    for number, (sigmas, within) in enumerate(PROMISED):
        most = {which: cell.best.found[number] for which, cell in found.items()}
        least = {which: MIN_FOUND if share >= MIN_FOUND else MIN_FOUND * share for which, share in most.items()}
        missed = [which for which, cell in found.items() if cell.ours.found[number] < least[which]]
        unmet = ", ".join(f"{kind} {level:.0%}" for kind, level in missed)
        text = f"{sigmas:g} sigma found within {within} nights in {MIN_FOUND:.0%}; where no rule can, of what one can"
        print(goal(not missed, text + (f" (not: {unmet})" if missed else "")))


def show_halved(false_alarms: float) -> None:
    """Print what the rule of halved rates finds; its false alarms in the worst row of the gate's table are known."""
    print(f"    points that fall to {FALLEN:.0%}, found in their first night; by the nights before:")
    for level in HALVED_LEVELS:
        one = halved(level)
        told = ", ".join(f"{n}: {share:.0%}" for n, share in zip(HALVED_AFTER, one.found, strict=True))
        print(f"    plain {level:.0%}: {told}; false alarms on {one.false_alarms:.1%} of nights")
    most = f"false alarms of halved rates on less than {MAX_FALSE_ALARMS:.0%} of nights"
    print(goal(false_alarms < MAX_FALSE_ALARMS, most))
