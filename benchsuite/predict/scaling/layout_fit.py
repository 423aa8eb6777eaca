"""Constants of the model from measured steps, and intervals that hold on rows not seen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import DRIFT_PER_DOUBLING, conformal_quantile, distance
from benchsuite.predict.theory.transformer_step import PRIORS, Configurations, Constants, Prior, StepParts, parts

MIN_ROWS = 6
FOLDS = 10
FIRST_NOISE, LEAST_NOISE, MOST_NOISE = 0.05, 0.01, 0.2
"""Of measured over modelled log times, while constants are fitted."""
MIN_SHAPES = 6
ENOUGH = 1e-4
"""Relative change of cost and of constants at which a search ends."""
LEARNT = 0.7
"""A constant was learnt where its deviation is at most this share of its prior's."""
PRODUCTS_SHARE, TRAFFIC_PER_FLOP = 1.2, 1 / 1100
"""Priors of the two rates: of products over what the fastest rows reach in all, of bytes over that of products."""


@dataclass(frozen=True)
class Fitted:
    """Constants fitted to rows."""

    constants: Constants
    learnt: Mapping[str, bool]
    """False: the rows say little about it, it is near its prior."""


@dataclass(frozen=True)
class Prediction:
    """Of configurations: (n,) each."""

    step_s: Floats
    low_s: Floats
    high_s: Floats
    parts: StepParts


@dataclass(frozen=True)
class Predictor:
    """A fitted model, and how far it is off where it was not fitted."""

    fitted: Fitted
    errors: Floats
    """Of every row, log of measured over predicted by constants fitted without it, (n,)."""
    half_width: float
    """Half of a 90 % interval of log time: a quantile of |errors|."""
    half_width_unseen: float
    """Half of it for shapes (`shapes`) that none of the rows has."""
    seen: frozenset[tuple[float, ...]]
    """Shapes of the rows."""
    measured: Floats
    """Sizes of the rows."""
    most_ranks: float

    def predict(self, runs: Configurations) -> Prediction:
        """Seconds per step with intervals; wider beyond the ranks and sizes that were measured."""
        found = parts(runs, self.fitted.constants)
        known = np.array([shape in self.seen for shape in shapes(runs)])
        reached = np.where(known, self.half_width, self.half_width_unseen)
        half = np.hypot(reached, DRIFT_PER_DOUBLING * distance(sizes(runs), self.measured))
        return Prediction(found.step_s, found.step_s * np.exp(-half), found.step_s * np.exp(half), found)

    @property
    def mape(self) -> float:
        """Mean of |predicted / measured - 1| over rows that were left out."""
        return float(np.mean(np.abs(np.expm1(-self.errors))))


def sizes(runs: Configurations) -> Floats:
    """Ranks, width, layers, length, tokens of a microbatch, tensor and pipeline parallelism: log2, (n, 7)."""
    columns = (runs.ranks, runs.hidden_size, runs.num_layers, runs.seq_len, runs.tokens, runs.tensor, runs.pipeline)
    return np.log2(np.stack(columns, axis=1))


def shapes(runs: Configurations) -> list[tuple[float, ...]]:
    """What a device's products look like: width, length, tensor parallelism and microbatch of each configuration."""
    columns = (runs.hidden_size, runs.seq_len, runs.tensor, runs.microbatch)
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def flops_per_device_s(runs: Configurations, seconds: Floats) -> Floats:
    """FLOP/s that each row reaches per device, recomputation and the head included."""
    h, s, layers = runs.hidden_size, runs.seq_len, runs.num_layers
    per_token = (72 + 24 * runs.recompute) * layers * h**2 * (1 + s / (6 * h)) + 6 * runs.vocab_size * h
    return runs.step_tokens * per_token / runs.ranks / seconds


def priors_for(runs: Configurations, seconds: Floats, known: Mapping[str, float] | None = None) -> dict[str, Prior]:
    """PRIORS with the two rates of a device brought to the scale of these rows, and with what is known otherwise.

    Raises:
        UserError: `known` names no constant.
    """
    for name in known or {}:
        if name not in PRIORS:
            raise refuse("constant", name, PRIORS)
    reached = float(np.quantile(flops_per_device_s(runs, seconds), 0.9)) * PRODUCTS_SHARE
    rates: dict[str, float] = {
        "flops_per_s": reached,
        "elementwise_bytes_per_s": reached * TRAFFIC_PER_FLOP,
        **(known or {}),
    }
    return {name: replace(prior, median=rates.get(name, prior.median)) for name, prior in PRIORS.items()}


def fit_constants(runs: Configurations, seconds: ArrayLike, priors: Mapping[str, Prior] | None = None) -> Fitted:
    """The constants with the greatest posterior: Student's t (2 degrees) of log times, log-normal priors.

    The noise is that of a first fit. Raises UserError where a time is not above 0.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if not len(times) or not np.all(np.isfinite(times) & (times > 0)):
        raise UserError("a step time is not above 0 or missing: every row needs one")
    priors = priors or priors_for(runs, times)
    names = list(priors)
    centres = np.log([priors[name].median for name in names])
    widths = np.array([priors[name].log_sd for name in names])

    def constants(place: Floats) -> Constants:
        return dict(zip(names, np.exp(centres + widths * place).tolist(), strict=True))

    def errors(place: Floats) -> Floats:
        return np.asarray(np.log(parts(runs, constants(place)).step_s) - np.log(times), dtype=np.float64)

    def residuals(place: Floats, noise: float) -> Floats:
        scaled = errors(place) / noise
        return np.concatenate([np.sign(scaled) * np.sqrt(3 * np.log1p(scaled**2 / 2)), place])

    first = least_squares(residuals, np.zeros(len(names)), args=(FIRST_NOISE,), ftol=ENOUGH, xtol=ENOUGH).x
    noise = _spread(errors(first))
    found = least_squares(residuals, first, args=(noise,), ftol=ENOUGH, xtol=ENOUGH)
    slopes = np.asarray(found.jac, dtype=np.float64)
    deviations = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
    learnt = {name: bool(deviation <= LEARNT) for name, deviation in zip(names, deviations, strict=True)}
    return Fitted(constants(found.x), learnt)


def _spread(errors: Floats) -> float:
    """1.4826 x the median distance from zero: the standard deviation of normal errors, outliers left out."""
    return float(np.clip(1.4826 * np.median(np.abs(errors)), LEAST_NOISE, MOST_NOISE))


def fit(
    runs: Configurations,
    seconds: ArrayLike,
    groups: ArrayLike | None = None,
    known: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Predictor:
    """Fit constants and the interval's width from (n,) configurations and step times.

    Errors out of sample are those of ten folds, each predicted from the other nine. `groups` (n,): rows of one group
    stay together, so that errors are those of configurations not seen; without it, or with one group alone, of rows
    among others like them.
    For configurations of a shape that no row has, errors are those of rows whose whole shape was left out.
    `known`: medians of priors that the machine's papers tell, such as node_bytes_per_s.

    Raises:
        UserError: fewer than six rows, or a step time that is none.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if len(times) < MIN_ROWS:
        raise UserError(f"{len(times)} rows with a step time: the model of layouts needs at least {MIN_ROWS}")
    priors = priors_for(runs, times, known)
    fitted = fit_constants(runs, times, priors)
    errors = _errors_out_of_sample(runs, times, priors, groups, seed)
    width = conformal_quantile(np.abs(errors))
    seen, unseen_width = shapes(runs), width
    if len({*seen}) >= MIN_SHAPES:
        by_shape = _errors_out_of_sample(runs, times, priors, [seen.index(shape) for shape in seen], seed)
        unseen_width = max(width, conformal_quantile(np.abs(by_shape)))
    return Predictor(fitted, errors, width, unseen_width, frozenset(seen), sizes(runs), float(runs.ranks.max()))


def _errors_out_of_sample(
    runs: Configurations, times: Floats, priors: Mapping[str, Prior], groups: ArrayLike | None, seed: int
) -> Floats:
    """Errors of every row by constants fitted to the other folds."""
    errors = np.zeros(len(times))
    for left_out in _folds(len(times), groups, seed):
        fitted = fit_constants(runs.take(~left_out), times[~left_out], priors)
        predicted = parts(runs.take(left_out), fitted.constants).step_s
        errors[left_out] = np.log(times[left_out]) - np.log(predicted)
    return errors


def _folds(count: int, groups: ArrayLike | None, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which rows are left out, FOLDS times or as often as there are groups; by rows where there is one group."""
    names, places = np.unique(np.arange(count) if groups is None else np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        names = places = np.arange(count)
    order = np.random.default_rng(seed).permutation(len(names))
    for fold in range(min(FOLDS, len(names))):
        yield np.isin(places, order[fold::FOLDS])
