"""Step time by ranks: an average over a few laws, each weighted by how likely it makes what was measured.

The log of a step, over that of perfect scaling, is taken as a sum: a constant; what a law says is lost; noise, which
every scale has of its own; and a drift that stays in all larger scales (a random walk over doublings of ranks). A
candidate is a law with its loss at the largest scale, and a size of noise and of drift. The constant is integrated out;
the rest lies on the grids below. A candidate's weight is its prior times its marginal likelihood (Bayesian model
averaging, Hoeting et al. 1999). A prediction is the mixture of what the candidates predict (kriging: Cressie 1993), so
that its interval holds noise, drift and how far the laws differ; the last two grow with the distance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import ndtr, ndtri

from benchsuite.predict.curve import Kind
from benchsuite.predict.theory.arrays import Floats

LEVEL = 0.9
NO_LOSS, FULL = "no further loss", "a full medium that all ranks share"
P_NO_LOSS: Mapping[Kind, float] = {"weak": 0.5, "strong": 0.3}
"""Prior weight of no loss; the laws share the rest alike. In strong scaling a part of the step mostly stays."""
LAWS: Mapping[Kind, Mapping[str, Callable[[Floats], Floats]]] = {
    "weak": {
        "a loss like 1 - 1/N": lambda n: 1 - 1 / n,
        "a loss like log N": np.log2,
        "a loss like N": lambda n: n - 1,
        "a loss like N squared": lambda n: n * (n - 1),
    },
    "strong": {
        "a part that ranks do not shorten": lambda n: n - 1,
        "a loss like log N": lambda n: n * np.log2(n),
        "a loss like N": lambda n: n * (n - 1),
    },
}
"""What is lost, over the time of perfect scaling, by ranks: volume of a ring, depth of a tree, latencies of a ring or
contention, and coherency (all pairs of ranks). In strong scaling perfect time falls with the ranks, so that a loss of
the same seconds weighs N times as much: the first law there is Amdahl's."""
LOSSES = np.geomspace(0.005, 10, 64)
"""What a law may lose at the largest scale, over the time of perfect scaling there, alike in logarithms."""
NUM_LIMITS = 32
"""Numbers of ranks, within those measured, that a shared medium may be full from."""
NOISES: Mapping[float, float] = {0.01: 0.5, 0.04: 0.5}
DRIFTS: Mapping[float, float] = {0.01: 0.9, 0.1: 0.1}
"""Relative deviations of a scale besides its repeats', and of a doubling of ranks, with their prior weights."""
LEAST_WEIGHT = 1e-5
"""Candidates of less weight than this share of the best one's are left out."""
NUM_HALVINGS = 14


@dataclass(frozen=True)
class Laws:
    """Every law with every loss, for a series that was measured at some ranks."""

    names: tuple[str, ...]
    priors: Floats
    growth: Callable[[Floats], Floats]
    """(laws, n): log of a step over that of perfect scaling, by ranks (n,)."""


@dataclass(frozen=True)
class Candidates:
    """All laws with one size of noise and of drift, fitted: arrays are by law."""

    noise: float
    drift: float
    inverse: Floats
    """Of the covariance of what was measured."""
    levels: Floats
    missed: Floats
    """(laws, scales): what is left of each measured value."""
    log_weights: Floats


@dataclass(frozen=True)
class Average:
    """The mixture of all candidates of a series."""

    kind: Kind
    ranks: Floats
    values: Floats
    """Log of the measured steps over those of perfect scaling."""
    repeat_variance: Floats
    laws: Laws
    candidates: Sequence[Candidates]
    weights: Floats
    """(sizes of noise and drift, laws)"""

    def seconds(self, ranks: Sequence[float]) -> Floats:
        """(3, n): median and ends of the 90 % interval of a step at these ranks; a measured scale is as measured."""
        at = np.array(ranks, dtype=np.float64)
        parts = [self._predict(one, at) for one in self.candidates]
        means, variances = (np.concatenate(each) for each in zip(*parts, strict=True))
        weights = self.weights.ravel()
        kept = weights > LEAST_WEIGHT * weights.max()
        found = quantiles(means[kept], np.sqrt(variances[kept]), weights[kept])
        return np.exp(found - _log_work(self.kind, at))

    def _predict(self, of: Candidates, at: Floats) -> tuple[Floats, Floats]:
        """Means and variances of log time, (laws, n) each: those of the walk given what was measured, and noise."""
        shared = of.drift**2 * shared_doublings(self.ranks, at)
        gain = of.inverse @ shared
        means = self.laws.growth(at) + of.levels[:, None] + of.missed @ gain
        walked = of.drift**2 * np.abs(np.log2(at / self.ranks[0])) - (shared * gain).sum(0)
        variances = walked + (1 - gain.sum(0)) ** 2 / of.inverse.sum() + of.noise**2 + self.repeat_variance[-1]
        for value, variance, count in zip(self.values, self.repeat_variance, self.ranks, strict=True):
            means[:, at == count] = value
            variances[at == count] = of.noise**2 + variance
        return means, np.broadcast_to(variances, means.shape)

    @property
    def shares(self) -> dict[str, float]:
        """Weights by law, the likeliest first."""
        found: dict[str, float] = {}
        for name, weight in zip(self.laws.names, self.weights.sum(0), strict=True):
            found[name] = found.get(name, 0.0) + float(weight)
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def fit(kind: Kind, ranks: Sequence[float], seconds: Sequence[float], repeat_variance: Sequence[float]) -> Average:
    """Average over all candidates for steps measured at ascending numbers of ranks.

    repeat_variance: relative variances of these steps, as their repeats tell.
    """
    at, variances = np.array(ranks, dtype=np.float64), np.array(repeat_variance, dtype=np.float64)
    values, laws = np.log(seconds) + _log_work(kind, at), laws_of(kind, at)
    candidates = [*_candidates(laws, at, values, variances)]
    logs = np.array([one.log_weights for one in candidates])
    weights = np.exp(logs - logs.max())
    return Average(kind, at, values, variances, laws, candidates, weights / weights.sum())


def laws_of(kind: Kind, measured: Floats) -> Laws:
    """The laws of a kind of scaling, with losses at the largest scale and limits within the measured ones."""
    most = measured[-1]
    limits = np.geomspace(measured[0], most, NUM_LIMITS, endpoint=False)
    forms = LAWS[kind]
    share = (1 - P_NO_LOSS[kind]) / (len(forms) + 1)
    names = (NO_LOSS, *np.repeat([*forms], len(LOSSES)).tolist(), *[FULL] * NUM_LIMITS)
    sizes = [len(LOSSES)] * len(forms) + [NUM_LIMITS]
    priors = np.concatenate([[P_NO_LOSS[kind]], *(np.full(size, share / size) for size in sizes)])

    def growth(n: Floats) -> Floats:
        lost = [np.log1p(np.outer(LOSSES, form(n) / form(most))) for form in forms.values()]
        return np.vstack([np.zeros((1, len(n))), *lost, np.maximum(np.log(n / limits[:, None]), 0.0)])

    return Laws(names, priors, growth)


def _candidates(laws: Laws, at: Floats, values: Floats, repeat_variance: Floats) -> Iterator[Candidates]:
    """Each size of noise and drift: levels by generalised least squares, and marginal likelihoods, for any level."""
    apart = values - laws.growth(at)
    for (noise, p_noise), (drift, p_drift) in product(NOISES.items(), DRIFTS.items()):
        covariance = drift**2 * shared_doublings(at, at) + np.diag(noise**2 + repeat_variance)
        inverse: Floats = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        levels = apart @ inverse.sum(0) / inverse.sum()
        missed = apart - levels[:, None]
        log_likelihood = np.linalg.slogdet(inverse)[1] - np.log(inverse.sum()) - ((missed @ inverse) * missed).sum(1)
        weights = np.log(laws.priors * p_noise * p_drift) + log_likelihood / 2
        yield Candidates(noise, drift, inverse, levels, missed, weights)


def shared_doublings(measured: Floats, at: Floats) -> Floats:
    """(n, m): doublings from the smallest measured scale on that both of two scales have behind them."""
    behind = np.log2(at / measured[0])
    return np.asarray(np.maximum(np.minimum(np.log2(measured / measured[0])[:, None], behind), 0.0))


def quantiles(means: Floats, deviations: Floats, weights: Floats) -> Floats:
    """(3, n): median and ends of the central 90 % of n mixtures of normals, (candidates, n)."""
    levels = np.array([0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2])[:, None]
    each = means[:, None] + deviations[:, None] * ndtri(levels)  # a mixture's quantile lies among those of its parts
    low, high, wanted = each.min(0), each.max(0), levels * weights.sum()
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        below = np.tensordot(weights, ndtr((middle - means[:, None]) / deviations[:, None]), 1) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def _log_work(kind: Kind, ranks: Floats) -> Floats:
    """Log of what perfect scaling divides a step by."""
    return np.log(ranks) if kind == "strong" else np.zeros(len(ranks))
