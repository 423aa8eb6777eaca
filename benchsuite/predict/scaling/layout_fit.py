"""Constants of the model from measured steps, with what they miss and intervals that hold on rows not seen."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares, minimize

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import DRIFT_PER_DOUBLING, LEVEL, conformal_quantile, distance
from benchsuite.predict.theory.transformer_step import PRIORS, Configurations, Constants, Prior, StepParts, parts

MAX_ROWS = 1500
"""The work grows with the cube of the rows: more are thinned."""
ROOT3 = 3**0.5
LEAST_SCALE = 0.3
PRIOR_MEANS = {"amplitude": np.log(0.08), "noise": np.log(0.02), "length": 1.0}
"""Of the logarithms of amplitude, noise (both in log time) and length (in standard deviations of a feature)."""
STEPS = 60


@dataclass(frozen=True)
class Residual:
    """A fitted process; far from its rows it returns to zero, and its deviation to the amplitude."""

    rows: Floats
    """(n, k) standardised features."""
    shift: Floats
    scale: Floats
    parameters: Floats
    """Logarithms: amplitude, noise, k lengths."""
    factor: tuple[Floats, bool]
    weights: Floats

    def at(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation (that of one more measurement) of log time at (m, k) features."""
        here = kernel((features - self.shift) / self.scale, self.rows, self.parameters)[0]
        variance = _variance(self.parameters) - (here * cho_solve(self.factor, here.T).T).sum(1)
        return here @ self.weights, np.sqrt(np.maximum(variance, 1e-12))


def _variance(parameters: Floats) -> float:
    return float(np.exp(2 * parameters[0]) + np.exp(2 * parameters[1]))


def kernel(left: Floats, right: Floats, parameters: Floats) -> tuple[Floats, Floats]:
    """Matern 3/2 with a length per feature (Rasmussen & Williams 2006, eq. 4.17): (m, n); and its distances, scaled."""
    lengths = np.exp(parameters[2:])
    distance = np.sqrt(((left[:, None] / lengths - right[None] / lengths) ** 2).sum(-1))
    return np.exp(2 * parameters[0]) * (1 + ROOT3 * distance) * np.exp(-ROOT3 * distance), distance


def learn(features: Floats, log_errors: Floats) -> Residual:
    """Fit to (n, k) features and (n,) log of measured over modelled, by marginal likelihood and weak priors."""
    if len(features) > MAX_ROWS:
        kept = np.linspace(0, len(features) - 1, MAX_ROWS).astype(np.intp)
        features, log_errors = features[kept], log_errors[kept]
    shift, scale = features.mean(0), np.maximum(features.std(0), LEAST_SCALE)
    rows = (features - shift) / scale
    start = np.r_[PRIOR_MEANS["amplitude"], PRIOR_MEANS["noise"], np.full(rows.shape[1], PRIOR_MEANS["length"])]
    squares = (rows[:, None] - rows[None]) ** 2
    found = minimize(
        _objective, start, args=(squares, log_errors, start), jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
    )
    return given(features, log_errors, np.asarray(found.x, dtype=np.float64), shift, scale)


def given(features: Floats, log_errors: Floats, parameters: Floats, shift: Floats, scale: Floats) -> Residual:
    """The process of these rows with parameters found before."""
    rows = (features - shift) / scale
    covariance = kernel(rows, rows, parameters)[0] + np.exp(2 * parameters[1]) * np.eye(len(rows))
    factor = cho_factor(covariance, lower=True)
    return Residual(rows, shift, scale, parameters, factor, cho_solve(factor, log_errors))


def _objective(parameters: Floats, squares: Floats, errors: Floats, prior: Floats) -> tuple[float, Floats]:
    """Negative log of likelihood x prior, and its gradient (Rasmussen & Williams 2006, eq. 5.9)."""
    lengths, noise = np.exp(parameters[2:]), np.exp(2 * parameters[1])
    distance = np.sqrt(squares @ lengths**-2)
    decay = np.exp(2 * parameters[0] - ROOT3 * distance)
    smooth = (1 + ROOT3 * distance) * decay
    size = len(errors)
    try:
        factor = cho_factor(smooth + noise * np.eye(size), lower=True)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(parameters)
    weights = cho_solve(factor, errors)
    slope = cho_solve(factor, np.eye(size)) - np.outer(weights, weights)
    away = parameters - prior
    value = errors @ weights / 2 + np.log(np.diag(factor[0])).sum() + away @ away / 2
    by_length = 1.5 * np.tensordot(slope * decay, squares, 2) * lengths**-2
    gradient = np.r_[(slope * smooth).sum(), noise * np.trace(slope), by_length] + away
    return float(value), gradient


MIN_ROWS = 6
FOLDS = 10
FIRST_NOISE, LEAST_NOISE, MOST_NOISE = 0.05, 0.01, 0.2
"""Of measured over modelled log times, while constants are fitted."""
MIN_ROWS_FOR_RESIDUAL = 40
MIN_SHAPES = 6
BETTER = 0.9
"""A residual is used where it brings the error out of sample down to this share or less."""
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
    noise: float
    """Robust standard deviation of log measured over modelled."""


@dataclass(frozen=True)
class Prediction:
    """Of configurations: (n,) each."""

    step_s: Floats
    low_s: Floats
    high_s: Floats
    parts: StepParts


@dataclass(frozen=True)
class OutOfSample:
    """Errors of rows when the model had not seen them, (n,): log of measured over predicted, and how large expected."""

    errors: Floats
    scales: Floats

    @property
    def scores(self) -> Floats:
        """|error| / scale."""
        return np.asarray(np.abs(self.errors) / self.scales, dtype=np.float64)

    @property
    def mape(self) -> float:
        """Mean of |predicted / measured - 1|."""
        return float(np.mean(np.abs(np.expm1(-self.errors))))


@dataclass(frozen=True)
class Predictor:
    """A fitted model with what it misses, and how far it is off where it was not fitted."""

    fitted: Fitted
    residual: Residual | None
    columns: NDArray[np.intp]
    """Features that vary over the rows."""
    quantile: float
    """Of |error| / scale out of sample, at `level`."""
    quantile_unseen: float
    """The same of rows whose shape (`shapes`) none of the rows had that they were predicted from."""
    seen: frozenset[tuple[float, ...]]
    """Shapes of the rows."""
    measured: Floats
    """Sizes of the rows."""
    level: float
    most_ranks: float
    out_of_sample: OutOfSample

    def predict(self, runs: Configurations) -> Prediction:
        """Seconds per step with intervals; wider beyond the ranks and sizes that were measured."""
        found = parts(runs, self.fitted.constants)
        shift, scale = self._missed(runs)
        known = np.array([shape in self.seen for shape in shapes(runs)])
        quantile = np.where(known, self.quantile, self.quantile_unseen)
        half = np.hypot(quantile * scale, DRIFT_PER_DOUBLING * distance(sizes(runs), self.measured))
        step = found.step_s * np.exp(shift)
        grown = {field.name: getattr(found, field.name) * np.exp(shift) for field in fields(found)}
        return Prediction(step, step * np.exp(-half), step * np.exp(half), StepParts(**grown))

    def _missed(self, runs: Configurations) -> tuple[Floats, Floats]:
        if self.residual is None:
            return np.zeros(len(runs.tensor)), np.full(len(runs.tensor), self.fitted.noise)
        return self.residual.at(features(runs)[:, self.columns])


def sizes(runs: Configurations) -> Floats:
    """Ranks, width, layers, length, tokens of a microbatch, tensor and pipeline parallelism: log2, (n, 7)."""
    columns = (runs.ranks, runs.hidden_size, runs.num_layers, runs.seq_len, runs.tokens, runs.tensor, runs.pipeline)
    return np.log2(np.stack(columns, axis=1))


def shapes(runs: Configurations) -> list[tuple[float, ...]]:
    """What a device's products look like: width, length, tensor parallelism and microbatch of each configuration."""
    columns = (runs.hidden_size, runs.seq_len, runs.tensor, runs.microbatch)
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def features(runs: Configurations) -> Floats:
    """What a residual may depend on: (n, 11), sizes as log2."""
    sizes = ("microbatch", "num_microbatches", "seq_len", "num_layers", "hidden_size", "tensor", "pipeline", "data")
    flags = ("zero", "recompute", "flash")
    columns = [np.log2(getattr(runs, name)) for name in sizes] + [getattr(runs, name) for name in flags]
    return np.stack(columns, axis=1).astype(np.float64)


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
    return Fitted(constants(found.x), learnt, _spread(errors(found.x)))


def _spread(errors: Floats) -> float:
    """1.4826 x the median distance from zero: the standard deviation of normal errors, outliers left out."""
    return float(np.clip(1.4826 * np.median(np.abs(errors)), LEAST_NOISE, MOST_NOISE))


def fit(
    runs: Configurations,
    seconds: ArrayLike,
    groups: ArrayLike | None = None,
    known: Mapping[str, float] | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> Predictor:
    """Fit constants, a residual where it helps, and the interval's width, from (n,) configurations and step times.

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
    errors = np.log(times) - np.log(parts(runs, fitted.constants).step_s)
    every = features(runs)
    columns = np.flatnonzero(np.ptp(every, axis=0) > 0)
    enough = len(columns) > 0 and len(times) >= MIN_ROWS_FOR_RESIDUAL
    learnt = learn(every[:, columns], errors) if enough else None

    def held_out(by: ArrayLike | None) -> tuple[OutOfSample, OutOfSample]:
        plain, helped = _out_of_sample(runs, times, _folds(len(times), by, seed), learnt, columns, priors)
        return replace(plain, scales=np.full(len(times), fitted.noise)), helped

    plain, helped = held_out(groups)
    used = learnt if learnt and helped.mape <= BETTER * plain.mape else None
    chosen = helped if used else plain
    quantile = conformal_quantile(chosen.scores, level)
    seen = shapes(runs)
    unseen = held_out([seen.index(shape) for shape in seen])[1 if used else 0] if len({*seen}) >= MIN_SHAPES else chosen
    beyond = max(quantile, conformal_quantile(unseen.scores, level))
    return Predictor(
        fitted, used, columns, quantile, beyond, frozenset(seen), sizes(runs), level, float(runs.ranks.max()), chosen
    )


def _folds(count: int, groups: ArrayLike | None, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which rows are left out, FOLDS times or as often as there are groups; by rows where there is one group."""
    names, places = np.unique(np.arange(count) if groups is None else np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        names = places = np.arange(count)
    order = np.random.default_rng(seed).permutation(len(names))
    for fold in range(min(FOLDS, len(names))):
        yield np.isin(places, order[fold::FOLDS])


def _out_of_sample(
    runs: Configurations,
    times: Floats,
    folds: Iterable[NDArray[np.bool_]],
    learnt: Residual | None,
    columns: NDArray[np.intp],
    priors: Mapping[str, Prior],
) -> tuple[OutOfSample, OutOfSample]:
    """Errors of every row by the constants of the other folds; and with a residual with the parameters of `learnt`."""
    plain, missed, scales = np.zeros(len(times)), np.zeros(len(times)), np.ones(len(times))
    for left_out in folds:
        kept, held = runs.take(~left_out), runs.take(left_out)
        fitted = fit_constants(kept, times[~left_out], priors)
        plain[left_out] = np.log(times[left_out]) - np.log(parts(held, fitted.constants).step_s)
        if learnt is not None:
            known = np.log(times[~left_out]) - np.log(parts(kept, fitted.constants).step_s)
            rows = features(kept)[:, columns]
            process = given(rows, known, learnt.parameters, learnt.shift, learnt.scale)
            missed[left_out], scales[left_out] = process.at(features(held)[:, columns])
    return OutOfSample(plain, np.ones(len(times))), OutOfSample(plain - missed, scales)
