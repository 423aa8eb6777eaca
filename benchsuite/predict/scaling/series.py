"""T(N) of a measured scaling series: an average over models of it, perfect scaling among them."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from scipy.optimize import nnls
from scipy.special import erfcx, log_ndtr

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exposed_communication import Overlap, rings_of
from benchsuite.predict.scaling.model import PART_OF, Model, term_names, terms_of
from benchsuite.predict.theory.arrays import Floats
from benchsuite.results.render.words import counted

MIN_SCALES = 2
MAX_BEYOND = 8
"""Times the most ranks measured: predictions beyond it are refused unless asked for."""
NOISES: Mapping[float, float] = {0.01: 0.4, 0.02: 0.3, 0.05: 0.3}
"""Relative deviations of a scale's step from what a model says, each independent of the others: prior weights."""
NOISES_BESIDE_REPEATS: Mapping[float, float] = {0.005: 0.5, 0.01: 0.3, 0.02: 0.2}
"""Relative deviations besides what repeats of a scale differ by, where a scale has several: prior weights."""
CHANGES: Mapping[float, float] = {0.003: 0.9, 0.03: 0.07, 0.3: 0.03}
"""Deviations of what changes for good in a doubling of ranks, and stays beyond."""
LEAST_NOISE, PART_NOISE = 0.02, 0.005
"""What a part was measured with at least: as a share of it, and besides of the whole step."""
SHARES: Mapping[str, float] = {
    "fixed": 1.0,
    "divided": 1.0,
    "slots": 0.3,
    "volume": 0.5,
    "sends": 0.5,
    "between": 1.0,
    "levels": 0.3,
    "linear": 0.5,
    "measured": 1.0,
    "slowest": 0.1,
    "pairs": 0.3,
    "full": 0.5,
    "fuller": 0.5,
}
"""Standard deviations of a term that is there, half-normal, as shares of the largest scale's step."""
SCALES: Mapping[float, float] = {0.2: 0.9, 1.0: 0.1}
"""How many times that large the terms beside the step's own may be: prior weights."""
SIZES, SIZES_OF_PARTS = (0.6, 0.28, 0.12), (0.25, 0.25, 0.25, 0.25)
"""Prior weights of no term beside the step's own, one, two and so on; and where parts of steps were told apart."""
SIZES_OF_TWO: Mapping[str, tuple[float, ...]] = {"weak": (0.75, 0.25), "strong": (0.15, 0.85)}
"""Prior weights of no term and of one where two scales are known, which cannot tell a loss from noise: in strong
scaling a part of the step mostly stays as it is (Amdahl's law)."""
FROM_THREE = frozenset({"pairs", "full", "fuller"})
"""Terms whose growth only a third scale shows."""
LIKELY: Mapping[str, float] = {
    "fixed": 12.0,
    "measured": 18.0,
    "between": 18.0,
    "linear": 3.0,
    "pairs": 0.6,
    "full": 0.5,
    "fuller": 0.5,
}
LIKELY_OF_STAGES: Mapping[str, float] = {"slots": 6.0, "sends": 6.0, "measured": 6.0}
"""How many times as likely as another a term is, among sets of as many; of pipelines."""
USL: Mapping[str, frozenset[str]] = {
    "weak": frozenset({"linear", "pairs"}),
    "strong": frozenset({"volume", "linear"}),
}
LIKELY_USL = 20.0
"""Terms which together are the Universal Scalability Law, contention and coherency, by kind of scaling (in a strong one
steps are over N); and how many times as likely that set is as its terms' own likelihoods say."""
DRAWS, SEED = 400, 20260101


@dataclass(frozen=True)
class Candidate:
    """A set of terms with noise, fitted."""

    places: tuple[int, ...]
    noise: float
    change: float
    whole: Floats
    """(rows + terms, terms): the design of all measurements and priors over their deviations."""
    wanted: Floats
    log_weight: float


def fit(curve: Curve) -> Model:
    """The average over candidates, each a set of terms with a noise, by how well they foretell the measurements.

    A candidate's weight is its prior times its marginal likelihood, the product of predictive densities of each
    measurement given those before (Hoeting et al. 1999, Bayesian model averaging). A term thus enters when the
    measurements are likelier with it, by more than it could explain besides. What no term explains either goes with the
    next measurement (noise) or stays (a random walk over doublings): predictions go on from the largest scales.

    Input is taken off first: it is modelled on its own.

    Raises:
        UserError: fewer than two numbers of ranks.
    """
    if len(curve.points) < MIN_SCALES:
        known = "".join(counted(point.ranks, "rank") for point in curve.points) or "no ranks"
        needed = f"a prediction needs at least {MIN_SCALES} scales"
        raise UserError(
            f"{curve.title}: measured at {known}: {needed}, such as `benchsuite sweep weak-scaling` measures"
        )
    curve = _overlapped(curve)
    found = [*_candidates(curve)]
    weights = np.exp(np.array([one.log_weight for one in found]) - max(one.log_weight for one in found))
    weights /= weights.sum()
    chosen = np.searchsorted(np.cumsum(weights), (np.arange(DRAWS) + 0.5) / DRAWS).clip(max=len(found) - 1)
    draws = _drawn([found[place] for place in chosen], len(term_names(curve)))
    levels, spreads = _levels(curve, draws, [found[place] for place in chosen])
    linear = float(sum(weight for weight, one in zip(weights, found, strict=True) if len(one.places) == 1))
    return Model(curve, term_names(curve), draws, levels, spreads, linear)


def _overlapped(curve: Curve) -> Curve:
    """The curve with what its buckets leave exposed by ranks, where backward passes and exchanges were measured."""
    backward = {point.ranks: point.backward_s for point in curve.points if point.backward_s}
    waits = {
        p.ranks: p.parts["communication"] for p in curve.points if p.ranks > 1 and p.parts and p.parts["communication"]
    }
    if not curve.buckets or not backward or curve.exchange is not None or not (waits or curve.bucket_s):
        return curve
    strong = curve.kind == "strong"
    per_rank_s = float(np.median([seconds * (ranks if strong else 1) for ranks, seconds in backward.items()]))

    def backward_s(ranks: Floats) -> Floats:
        return per_rank_s / ranks if strong else np.full(ranks.shape, per_rank_s)

    sizes, wires = np.array(curve.buckets), None
    if curve.bucket_s is None:
        wires = rings_of(sizes, backward_s, waits, curve.placement)
    overlap = Overlap(sizes, backward_s, curve.placement, curve.bucket_s, wires)
    return replace(curve, exchange=overlap.seconds, overlap=overlap)


def _candidates(curve: Curve) -> Iterator[Candidate]:
    names = term_names(curve)
    design = terms_of(curve, np.array([float(point.ranks) for point in curve.points]))
    shares = np.array([SHARES[name] for name in names]) * curve.points[-1].base_s
    priors = _priors(curve, names)
    noises = NOISES_BESIDE_REPEATS if noise_of(curve.points) else NOISES
    for (noise, noise_weight), (change, change_weight) in product(noises.items(), CHANGES.items()):
        rows, wanted, log_det = _measured(curve, design, names, noise, change)
        shared = np.log(noise_weight * change_weight) - log_det
        for (places, scale), prior in priors.items():
            widths = shares[[*places]] * [1.0, *[scale] * (len(places) - 1)]
            whole = np.vstack([rows[:, places], np.diag(1 / widths)])
            targets = np.concatenate([wanted, np.zeros(len(places))])
            weight = shared + np.log(prior) + _log_evidence(whole, targets, widths)
            yield Candidate(places, noise, change, whole, targets, weight)


def _priors(curve: Curve, names: Sequence[str]) -> dict[tuple[tuple[int, ...], float], float]:
    """Prior weights by places of terms and scale. No more terms than points, where parts were not told apart."""
    told = any(point.parts for point in curve.points)
    few = len(curve.points) == MIN_SCALES and not told
    sizes = SIZES_OF_PARTS if told else SIZES_OF_TWO[curve.kind] if few else SIZES
    extras = [place for place in range(1, len(names)) if not few or names[place] not in FROM_THREE]
    found: dict[tuple[tuple[int, ...], float], float] = {((0,), 1.0): sizes[0]}
    for size in range(1, min(len(extras) + 1, len(sizes), len(sizes) if told else len(curve.points))):
        sets = [(0, *extra) for extra in combinations(extras, size)]
        likely = [_likely(curve, {names[place] for place in places[1:]}) for places in sets]
        for (places, own), (scale, weight) in product(zip(sets, likely, strict=True), SCALES.items()):
            found[places, scale] = sizes[size] * own / sum(likely) * weight
    return found


def _likely(curve: Curve, terms: Set[str]) -> float:
    """How likely a set of terms is, beside others of as many."""
    known = LIKELY_OF_STAGES if curve.pipeline else LIKELY
    law = LIKELY_USL if terms == USL[curve.kind] else 1.0
    return law * float(np.prod([known.get(name, 1.0) for name in terms]))


def _measured(
    curve: Curve, design: Floats, names: Sequence[str], noise: float, change: float
) -> tuple[Floats, Floats, float]:
    """Rows of whole steps and of parts over their deviations, what they are to be, and the log of all deviations."""
    base = np.array([point.base_s for point in curve.points])
    root = np.linalg.cholesky(covariance(curve.points, noise, change))
    rows, targets = [np.linalg.solve(root, design / base[:, None])], [np.linalg.solve(root, np.ones(len(base)))]
    log_det = float(np.log(np.diag(root)).sum())
    for row, point in zip(design, curve.points, strict=True):
        for part, value in (point.parts or {}).items():
            deviation = float(np.hypot(max(noise, LEAST_NOISE) * value, PART_NOISE * point.base_s))
            rows.append((row * [PART_OF[name] == part for name in names] / deviation)[None])
            targets.append(np.array([value / deviation]))
            log_det += float(np.log(deviation / point.base_s))
    return np.vstack(rows), np.concatenate(targets), log_det


def covariance(points: Sequence[Point], noise: float, change: float) -> Floats:
    """Covariance of relative deviations of scales' median steps: noise and repeats alone, changes from there on."""
    doublings = np.log2([point.ranks / points[0].ranks for point in points])
    alone = noise**2 + np.array([noise_of([point]) for point in points]) ** 2
    return np.diag(alone) + change**2 * np.minimum(doublings[:, None], doublings)


def _log_evidence(whole: Floats, wanted: Floats, widths: Floats) -> float:
    """Log of the marginal likelihood of non-negative terms, half-normal before: Laplace's at the mode.

    Terms that are above zero there are normal, cut at zero; those at zero fall with the slope that is left.
    """
    mode, away = nnls(whole, wanted)
    hessian = whole.T @ whole
    free = mode > 0
    inner = hessian[np.ix_(free, free)]
    spread = np.linalg.inv(inner)
    log_volume = -0.5 * np.linalg.slogdet(inner)[1] + 0.5 * free.sum() * np.log(2 * np.pi)
    log_volume += float(log_ndtr(mode[free] / np.sqrt(np.diag(spread))).sum())
    if not free.all():
        cross = hessian[np.ix_(~free, free)]
        curved = np.diag(hessian[np.ix_(~free, ~free)] - cross @ spread @ cross.T)
        slope = np.maximum((whole.T @ (whole @ mode - wanted))[~free], 0.0)
        log_volume += float(np.log(np.sqrt(np.pi / 2 / curved) * erfcx(slope / np.sqrt(2 * curved))).sum())
    return float(log_volume - 0.5 * away**2 - np.log(widths * np.sqrt(np.pi / 2)).sum())


def _drawn(chosen: Sequence[Candidate], terms: int) -> Floats:
    """(DRAWS, terms): of each chosen candidate one solution, for measurements and priors drawn within their noise.

    Randomize-then-optimize (Bardsley et al. 2014): ends of what the measurements and signs allow, without linearising.
    """
    generator = np.random.default_rng(SEED)
    found = np.zeros((len(chosen), terms))
    for row, one in zip(found, chosen, strict=True):
        noise = generator.standard_normal(len(one.wanted))
        noise[-len(one.places) :] = np.abs(noise[-len(one.places) :])
        row[[*one.places]] = nnls(one.whole, one.wanted + noise)[0]
    return found


def _levels(curve: Curve, draws: Floats, chosen: Sequence[Candidate]) -> tuple[Floats, Floats]:
    """`Model.level` and `Model.spread` of draws: the level at each scale, given how far its terms miss the steps."""
    ranks = np.array([float(point.ranks) for point in curve.points])
    base = np.array([point.base_s for point in curve.points])
    missed = np.log(base / np.maximum(draws @ terms_of(curve, ranks).T, 1e-12 * base))
    levels, spreads = np.zeros_like(missed), np.zeros((len(draws), 3))
    doublings = np.log2(ranks / ranks[0])
    last_noise = noise_of([curve.points[-1]])
    for noise, change in {(one.noise, one.change) for one in chosen}:
        these = [one.noise == noise and one.change == change for one in chosen]
        walk = change**2 * np.minimum(doublings[:, None], doublings)
        gain = np.linalg.solve(covariance(curve.points, noise, change), walk).T
        levels[these] = missed[these] @ gain.T
        left = float((walk - gain @ walk)[-1, -1])
        spreads[these] = np.sqrt(max(left, 0.0)), change, np.hypot(noise, last_noise)
    return levels, spreads


def noise_of(points: Sequence[Point]) -> float:
    """Relative standard deviation of a median step over repeats; 0 where no scale has several."""
    spreads = [np.std(p.step_s, ddof=1) / p.middle_s / np.sqrt(len(p.step_s)) for p in points if len(p.step_s) > 1]
    return float(max(spreads, default=0.0))
