"""T(N) of a measured scaling series: computation, exposed communication, waiting for the slowest, and input."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.bucketing import overlapped
from benchsuite.predict.scaling.curve import Curve, Point, linear_share
from benchsuite.predict.scaling.model import PART_OF, PARTS, Model, offsets_s, term_names, terms_of
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import doublings_beyond

MIN_SCALES = 2
MAX_BEYOND = 8
"""Times the most ranks measured: predictions beyond it are refused unless asked for."""
LEAST_NOISE, PART_NOISE = 0.02, 0.005
"""What a model this small misses at least: as a share of a part, and besides of the whole step."""
DRIFT_PER_DOUBLING, DRIFT_COUNTS = 0.03, 2
"""Relative error per doubling beyond what was measured, before a back-test tells; and for how many tests it counts."""
PRIOR_SHARES = {
    "fixed": 1.0,
    "divided": 1.0,
    "slots": 0.3,
    "volume": 0.5,
    "sends": 0.5,
    "between": 0.5,
    "levels": 0.1,
    "linear": 0.1,
    "measured": 1.0,
    "slowest": 0.05,
}
"""Standard deviations of a term's coefficient, as shares of the largest scale's step; `levels`, `linear`: at least."""
PIPELINE_FIXED = 0.3
"""Of `fixed` in pipelines: what a stage does once is divided or paid in every slot of the schedule."""
DRAWS, SEED = 300, 20260101


def fit(curve: Curve) -> Model:
    """Coefficients of all terms, none below zero: least squares over whole steps and their parts, with priors.

    Input is taken off first: it is modelled on its own. The error per doubling is that of back-tests of the curve
    itself, beyond what noise of both sides explains, with DRIFT_PER_DOUBLING counting for two; by what the model misses
    its own points, intervals are wider; where it lies below the largest scale, what it misses is added (`offsets_s`).

    Raises:
        UserError: fewer than two numbers of ranks.
    """
    if len(curve.points) < MIN_SCALES:
        known = ", ".join(str(point.ranks) for point in curve.points) or "none"
        raise UserError(f"{curve.title}: measured at {known} ranks: a prediction needs at least {MIN_SCALES} scales")
    model = _fitted(curve)
    errors = []
    for count in range(MIN_SCALES, len(curve.points)):
        held, place = curve.points[count], curve.placement.upto(curve.points[count - 1].ranks)
        if place.is_unmeasured(held.ranks):
            continue  # that a second node is another network is no drift
        known_model = _fitted(replace(curve, points=curve.points[:count], placement=place))
        doublings = float(doublings_beyond(held.ranks, curve.points[count - 1].ranks))
        foretold = sum(known_model.at(held.ranks).parts[part] for part in PARTS)
        errors.append((foretold / held.base_s - 1) / max(doublings, 1.0))
    by_noise = 2 * model.noise**2
    squares = DRIFT_COUNTS * DRIFT_PER_DOUBLING**2 + sum(max(error**2 - by_noise, 0.0) for error in errors)
    drift = float(np.sqrt(squares / (DRIFT_COUNTS + len(errors))))
    missed = [sum(model.at(point.ranks).parts[part] for part in PARTS) / point.base_s - 1 for point in curve.points]
    rms_fit_error = float(np.sqrt(np.mean(np.square(missed))))
    missing = offsets_s(curve.points[-1], model.at(curve.most_ranks).parts, model.noise)
    noise = float(np.hypot(model.noise, rms_fit_error))
    return replace(model, drift=drift, rms_fit_error=rms_fit_error, noise=noise, offset_s=missing)


def _prior_share(curve: Curve, term: str) -> float:
    if term in ("levels", "linear"):
        return max(PRIOR_SHARES[term], linear_share(curve))
    return PIPELINE_FIXED if term == "fixed" and curve.pipeline else PRIOR_SHARES[term]


def _fitted(curve: Curve) -> Model:
    curve = overlapped(curve)
    names = term_names(curve)
    ranks = np.array([float(point.ranks) for point in curve.points])
    design = terms_of(curve, ranks)
    noise = noise_of(curve.points)
    largest = curve.points[-1].middle_s
    rows, targets = [], []
    for row, point in zip(design, curve.points, strict=True):
        base = point.base_s
        known = {name: value for name, value in (point.parts or {}).items() if value is not None}
        told = {*known} >= {*PARTS}
        wanted = [({*PARTS}, base), *([({part}, value) for part, value in known.items()] if told else [])]
        for of, value in wanted:
            deviation = float(np.hypot(noise * value, PART_NOISE * base))
            rows.append(row * [PART_OF[name] in of for name in names] / deviation)
            targets.append(value / deviation)
    widths = np.array([_prior_share(curve, name) for name in names]) * largest
    whole = np.vstack([np.array(rows), np.diag(1 / widths)])
    wanted_s = np.concatenate([targets, np.zeros(len(names))])
    repeats = sum(len(point.step_s) for point in curve.points)
    return Model(
        curve,
        names,
        nnls(whole, wanted_s)[0],
        _drawn(whole, wanted_s, len(rows)),
        noise,
        DRIFT_PER_DOUBLING,
        max(repeats - MIN_SCALES, 3),
    )


def _drawn(whole: Floats, wanted: Floats, measured: int) -> Floats:
    """Solutions for measurements drawn within their noise, and coefficients from the half-normal priors.

    Randomize-then-optimize (Bardsley et al. 2014): ends of what the measurements and signs allow, without linearising.
    """
    generator = np.random.default_rng(SEED)
    noise = generator.standard_normal((DRAWS, len(wanted)))
    noise[:, measured:] = np.abs(noise[:, measured:])
    return np.array([nnls(whole, wanted + draw)[0] for draw in noise])


def noise_of(points: Sequence[Point]) -> float:
    """Relative standard deviation of a median step over repeats, at least LEAST_NOISE."""
    spreads = [np.std(p.step_s, ddof=1) / p.middle_s / np.sqrt(len(p.step_s)) for p in points if len(p.step_s) > 1]
    return float(max(LEAST_NOISE, *spreads)) if spreads else LEAST_NOISE
