"""Constants of the model from measured steps, and intervals that hold on rows not seen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.assumptions import Assumptions, ranges
from benchsuite_plan.layout.candidates import Job
from benchsuite_plan.layout.cost import constants_of
from benchsuite_plan.layout.step import Constants, Cost, step
from benchsuite_plan.layout.work import Work
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.theory.interval import DRIFT_PER_DOUBLING, Z_95, conformal_quantile, distance

MIN_ROWS = 6
FOLDS = 10
FIRST_NOISE, LEAST_NOISE, MOST_NOISE = 0.05, 0.01, 0.2
"""Deviations of measured from modelled log times, while constants are fitted."""
MIN_SHAPES = 6
ENOUGH = 1e-4
"""Relative change of cost and of constants at which a search ends."""
LEARNT = 0.7
"""A constant was learnt where its deviation is at most this share of its prior's."""
PRODUCTS_SHARE, TRAFFIC_PER_FLOP = 1.2, 1 / 370
"""Priors of the two rates: of products over what the fastest rows reach in all, of bytes over that of products."""
RATES = ("flops_per_s", "memory_bytes_per_s", "link_bytes_per_s")
"""Rates of a table's devices, of which nothing is known: UNKNOWN is the standard deviation of their logarithms."""
UNKNOWN, WIDER = 0.75, 1.5
"""How many times as wide as its range the prior of any other constant is: a table's software may be any."""
NODE_BYTES_PER_S, NODE_SD = 80e9, 0.45
"""Prior of a network between nodes, all devices of a node together. It is narrower, since exchange that is hidden looks
like one that is fast; UNKNOWN holds where no row has several nodes."""
NOT_FITTED = ("narrow", "exposed_sends")
"""What tables were never found to tell."""


@dataclass(frozen=True)
class Prior:
    """What a constant is before it is fitted: log-normal."""

    median: float
    log_sd: float


@dataclass(frozen=True)
class Fitted:
    """Constants fitted to rows."""

    constants: Constants
    learnt: Mapping[str, bool]
    """False: the rows say little about it, it is near its prior."""


@dataclass(frozen=True)
class Prediction:
    """Predictions of configurations: (n,) each."""

    step_s: Floats
    low_s: Floats
    high_s: Floats
    parts: Cost


@dataclass(frozen=True)
class Predictor:
    """A fitted model, and how far it is off where it was not fitted."""

    fitted: Fitted
    errors: Floats
    """Log of measured over predicted of every row, by constants fitted without it, (n,)."""
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
        found = step(runs.work, self.fitted.constants)
        known = np.array([shape in self.seen for shape in shapes(runs)])
        reached = np.where(known, self.half_width, self.half_width_unseen)
        half = np.hypot(reached, DRIFT_PER_DOUBLING * distance(sizes(runs), self.measured))
        return Prediction(found.step_s, found.step_s * np.exp(-half), found.step_s * np.exp(half), found)

    @property
    def mape(self) -> float:
        """Mean of |predicted / measured - 1| over rows that were left out."""
        return mean_off(self.errors)


def mean_off(errors: Floats) -> float:
    """Mean of |predicted / measured - 1| of log errors."""
    return float(np.mean(np.abs(np.expm1(-errors))))


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


@cache
def _assumed(end: str) -> Constants:
    """The planner's constants of an A100: typical, or all at the low or high end of their ranges."""
    job = Job(models.load("gpt3-175b"), machines.load("dgx-a100"), 8, 8)
    return constants_of(job, Assumptions(**{name: getattr(of, end) for name, of in ranges().items()}))


@cache
def priors() -> Mapping[str, Prior]:
    """What is known of the constants before a table: the planner's values and ranges."""
    low, middle, high = (vars(_assumed(end)) for end in ("low", "typical", "high"))
    widths = {name: WIDER * abs(np.log(high[name] / low[name])) / 2 / Z_95 for name in {*middle} - {*NOT_FITTED}}
    found = {name: Prior(middle[name], float(widths[name])) for name in middle if name in widths}
    found |= {name: Prior(middle[name], UNKNOWN) for name in RATES}
    return found | {"node_bytes_per_s": Prior(NODE_BYTES_PER_S, NODE_SD)}


def priors_for(runs: Configurations, seconds: Floats, known: Mapping[str, float] | None = None) -> dict[str, Prior]:
    """`priors` with the two rates of a device brought to the scale of these rows, and with what is known otherwise.

    Raises:
        UserError: `known` names no constant.
    """
    for name in known or {}:
        if name not in priors():
            raise refuse("constant", name, priors())
    reached = float(np.quantile(flops_per_device_s(runs, seconds), 0.9)) * PRODUCTS_SHARE
    rates: dict[str, float] = {
        "flops_per_s": reached,
        "memory_bytes_per_s": reached * TRAFFIC_PER_FLOP,
        **(known or {}),
    }
    return {name: replace(prior, median=rates.get(name, prior.median)) for name, prior in priors().items()}


def fit_constants(
    work: Work,
    seconds: ArrayLike,
    given: Mapping[str, Prior],
    near: Constants | None = None,
) -> Fitted:
    """The constants with the greatest posterior: Student's t (2 degrees) of log times, log-normal priors (`given`).

    The noise is that of a first fit; `near`: constants of about these rows, where the search then begins. Raises
    UserError where a time is not above 0.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if not len(times) or not np.all(np.isfinite(times) & (times > 0)):
        raise UserError("a step time is not above 0 or missing: every row needs one")
    names = list(given)
    centres = np.log([given[name].median for name in names])
    widths = np.array([given[name].log_sd for name in names])

    def constants(place: Floats) -> Constants:
        values = np.exp(centres + widths * place).tolist()
        return replace(_assumed("typical"), **dict(zip(names, values, strict=True)))

    def errors(place: Floats) -> Floats:
        return np.asarray(np.log(step(work, constants(place)).step_s) - np.log(times), dtype=np.float64)

    def residuals(place: Floats, noise: float) -> Floats:
        scaled = errors(place) / noise
        return np.concatenate([np.sign(scaled) * np.sqrt(3 * np.log1p(scaled**2 / 2)), place])

    first = (
        np.zeros(len(names)) if near is None else (np.log([getattr(near, name) for name in names]) - centres) / widths
    )
    if near is None:
        first = least_squares(residuals, first, args=(FIRST_NOISE,), ftol=ENOUGH, xtol=ENOUGH).x
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
        raise UserError(
            f"{len(times)} rows with a step time: the model of layouts needs at least {MIN_ROWS}; `benchsuite predict "
            "--table` predicts series of ranks, from a table without the model's shape"
        )
    given = priors_for(runs, times, known)
    fitted = fit_constants(runs.work, times, given)
    errors = errors_out_of_sample(runs.work, times, fitted, given, groups, seed)
    width = conformal_quantile(np.abs(errors))
    seen, unseen_width = shapes(runs), width
    if len({*seen}) >= MIN_SHAPES:
        by_shape = errors_out_of_sample(runs.work, times, fitted, given, [seen.index(shape) for shape in seen], seed)
        unseen_width = max(width, conformal_quantile(np.abs(by_shape)))
    return Predictor(fitted, errors, width, unseen_width, frozenset(seen), sizes(runs), float(runs.ranks.max()))


def errors_out_of_sample(
    work: Work,
    times: Floats,
    whole: Fitted,
    given: Mapping[str, Prior],
    groups: ArrayLike | None,
    seed: int,
) -> Floats:
    """Errors of every row by constants fitted to the other folds, a search that begins at those of all (`whole`)."""
    errors = np.zeros(len(times))
    for left_out in _folds(len(times), groups, seed):
        fitted = fit_constants(work.take(~left_out), times[~left_out], given, whole.constants)
        predicted = step(work.take(left_out), fitted.constants).step_s
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
