"""T(N) of a measured scaling series: computation, exposed communication, waiting for the slowest, and input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student

from benchsuite.errors import UserError
from benchsuite.predict import anchor, growth, waiting
from benchsuite.predict.arrays import Floats
from benchsuite.predict.bucketing import overlapped
from benchsuite.predict.hidden import ExposureOf
from benchsuite.predict.interval import LEVEL, doublings_beyond
from benchsuite.predict.model import of_slowest
from benchsuite.predict.nodes import UNTOLD, Placement, unmeasured_s
from benchsuite.predict.pipeline import hops

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
LEAST_BASE = 0.01
"""Of a step that is not waiting for input, as a share, whatever its waits add up to."""
PARTS = ("compute", "exchange", "imbalance")
PART_OF = {
    "fixed": "compute",
    "divided": "compute",
    "slots": "compute",
    "volume": "exchange",
    "sends": "exchange",
    "between": "exchange",
    "levels": "exchange",
    "linear": "exchange",
    "measured": "exchange",
    "slowest": "imbalance",
}


@dataclass(frozen=True)
class Point:
    """What was measured at a number of ranks."""

    ranks: int
    step_s: tuple[float, ...]
    """Of each repeat."""
    load_s: float = 0.0
    """Of it waiting for input, its own or that of ranks which it meets in the exchange."""
    parts: Mapping[str, float | None] | None = None
    """Of it computation, exchange without stragglers, and waiting for them; None where they were not told apart."""
    io_bytes_per_s: float | None = None
    backward_s: float | None = None
    au: float | None = None
    """Accelerator utilization as measured, against the rate without input."""

    @property
    def middle_s(self) -> float:
        """The median step."""
        return float(np.median(self.step_s))

    @property
    def base_s(self) -> float:
        """Of it not waiting for input."""
        return max(self.middle_s - self.load_s, LEAST_BASE * self.middle_s)


@dataclass(frozen=True)
class Curve:
    """A series of points that differ in their ranks alone."""

    title: str
    kind: str
    """weak: the batch of a rank is fixed; strong: that of all ranks."""
    batch: float
    """Samples per step: of a rank that has samples of its own (weak), of all (strong)."""
    points: tuple[Point, ...]
    data_share: float = 1.0
    """Ranks with samples of their own over ranks."""
    pipeline: bool = False
    """The ranks are stages of a pipeline, which wait for one another, by the bubble."""
    microbatches: int | None = None
    """Of a pipeline; None: as many as stages."""
    flushes: bool = False
    """The pipeline's forward passes all come first (GPipe), so that transfers delay nothing between."""
    exchange: Callable[[Floats], Floats] | None = None
    """Seconds of the series' collectives by ranks, as probed; None where they were not."""
    exchange_ends: Callable[[Floats], Floats] | None = None
    """Ends of the 90 % interval of `exchange` by ranks, (2, n), where it was fitted."""
    exchange_slow: Callable[[Floats], Floats] | None = None
    """What DDP's buckets leave exposed by ranks over a network `nodes.SLOWER` times as slow."""
    placement: Placement = UNTOLD
    """Nodes of its ranks."""
    buckets: tuple[float, ...] = ()
    """Bytes of what DDP exchanges at a time, beside the backward pass."""
    sent_share: float = 1.0
    """Of each byte of gradients that a bucket holds: half where a hook compresses them."""
    bucket_s: Callable[[Floats], Callable[[Floats], Floats]] | None = None
    """Of buckets of such sizes, what each takes by ranks, as probed, (n, buckets); None: as a ring that the trials'
    exchange tells."""
    exposure: ExposureOf | None = None
    """What DDP's buckets leave exposed, where that was fitted or probed (`bucketing.overlapped`)."""
    asked_cap_bytes: float | None = None
    """Its buckets are those of a what-if (`bucketing.with_buckets`)."""
    wire_speed: float = 1.0
    """`exchange` and its ends are those of a network so many times as fast (`bucketing.with_network`)."""
    has_input: bool = False
    """Waiting for input was measured, so that there is a utilization."""
    caveats: tuple[str, ...] = ()
    """Of its trials, in words; and what was left out."""
    shared_bytes_per_s: float | None = None
    """Limit of a file system that all ranks read from; None where it was not seen or staging lifts it."""
    seen_bytes_per_s: float | None = None
    """The limit of that file system which the trials show, where another may be asked for."""
    readers_bytes_per_s: float | None = None
    """Where cores that read and decode limit input: what those of the most ranks' nodes give, whatever the storage."""
    staged: Literal["trials", "asked"] | None = None
    """Input comes from copies on each node: of the trials themselves, or of a what-if."""
    notes: tuple[str, ...] = ()
    """What else its prediction rests on."""
    batches: tuple[int, ...] = ()
    """Those that its points were made of (`predict.batches`); empty: they were measured."""
    spread: tuple[float, float] = (0.0, 0.0)
    """How far a step may lie below and above such points, as shares, besides their noise."""
    refound: "Callable[[float], Curve] | None" = None
    """The curve as its measurements up to so many ranks alone give it; None: nothing but its points was measured."""

    def upto(self, ranks: float) -> "Curve":
        """What would be known of it, had it not been measured at more ranks."""
        if self.refound is not None:
            return self.refound(ranks)
        return replace(self, points=tuple(point for point in self.points if point.ranks <= ranks))

    def au_scale(self, ranks: float) -> float | None:
        """Utilization over the share of a step that does not wait for input, between points; None where none has it."""
        known = {point.ranks: point.au * point.middle_s / point.base_s for point in self.points if point.au is not None}
        return float(np.interp(np.log2(ranks), np.log2([*known]), [*known.values()])) if known else None

    def samples(self, ranks: float) -> float:
        """Samples per step of all ranks."""
        return self.batch * ranks * self.data_share if self.kind == "weak" else self.batch

    @property
    def most_ranks(self) -> int:
        """The largest scale."""
        return max(point.ranks for point in self.points)


@dataclass(frozen=True)
class Outlook:
    """The prediction for one number of ranks; ends are those of the prediction interval (`interval`)."""

    ranks: int
    step_s: float
    low_s: float
    high_s: float
    load_s: float
    load_high_s: float
    parts: Mapping[str, float]
    """Seconds of compute, exchange, imbalance and load."""
    samples: float
    fed: tuple[float, float, float]
    """Share of the step that does not wait for input: value, low, high."""
    au_scale: float | None = None

    @property
    def au(self) -> tuple[float, float, float]:
        """Utilization: value, low, high; that share, where none was measured."""
        value, low, high = (share * (1.0 if self.au_scale is None else self.au_scale) for share in self.fed)
        return value, low, high


@dataclass(frozen=True)
class Model:
    """A curve with its fitted terms."""

    curve: Curve
    names: tuple[str, ...]
    coefficients: Floats
    """Seconds at the largest measured scale."""
    draws: Floats
    """(DRAWS, terms): the same, as measurements within their noise and the priors would give them."""
    noise: float
    drift: float
    """Relative error per doubling beyond the largest measured scale."""
    freedom: int
    misfit: float = 0.0
    """Root mean square of fitted / measured - 1 over the points; part of the noise."""
    missed_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part that the fit misses of the largest scale (`anchor`): added there and beyond."""

    def at(self, ranks: int, network: float = 1.0, storage: float = 1.0, level: float = LEVEL) -> Outlook:
        """The step at so many ranks, were the network and the shared file system so many times as fast."""
        terms = _terms(self.curve, np.array([float(ranks)]))[0]
        left = network / self.curve.wire_speed
        speeds = {**{name: network for name, part in PART_OF.items() if part == "exchange"}, "measured": left}
        terms = terms / np.array([speeds.get(name, 1.0) for name in self.names])
        seconds = terms * self.coefficients
        base = float(seconds.sum())
        parts = {part: float(seconds[[PART_OF[name] == part for name in self.names]].sum()) for part in PARTS}
        low, high = self._ends(self.draws @ terms, self._wire_ends(ranks, left), base, ranks, level)
        parts = anchor.added(parts, self.missed_s if ranks >= self.curve.most_ranks else {}, network)
        base, low, high = (seconds * sum(parts.values()) / base for seconds in (base, low, high))
        high += unmeasured_s(self.curve.placement, self.curve.exchange_slow, ranks, parts["exchange"], left)
        (load, load_high), (load_low, low_high), (load_top, _) = (
            waiting.load_s(self.curve, ranks, end_s, storage) for end_s in (base, low, high)
        )
        fed = base / (base + load)
        return Outlook(
            ranks,
            base + load,
            low + min(load, load_low),
            high + max(load_high, load_top),
            load,
            load_high,
            {**parts, "load": load},
            self.curve.samples(ranks),
            (fed, min(fed, low / (low + max(load_low, low_high))), max(fed, high / (high + load_top))),
            self.curve.au_scale(ranks),
        )

    def _wire_ends(self, ranks: int, network: float) -> tuple[float, float]:
        """How far what is exposed may lie below and above, by the constants of the wire."""
        if self.curve.exchange is None or self.curve.exchange_ends is None:
            return 0.0, 0.0
        here, most = np.array([float(ranks)]), np.array([float(self.curve.most_ranks)])
        scale = self.coefficients[self.names.index("measured")] / max(float(self.curve.exchange(most)[0]), 1e-12)
        away = (self.curve.exchange_ends(here)[:, 0] - self.curve.exchange(here)[0]) * scale / network
        return min(float(away[0]), 0.0), max(float(away[1]), 0.0)

    def _ends(
        self, drawn: Floats, wire_s: tuple[float, float], base_s: float, ranks: int, level: float
    ) -> tuple[float, float]:
        """Of the step without input, for one more median of repeats: by draws, wire, noise and drift."""
        drift = self.drift * float(doublings_beyond(ranks, self.curve.most_ranks))
        own = float(student.ppf(0.5 + level / 2, self.freedom)) * float(np.hypot(self.noise, drift))
        below, above = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2]) / base_s - 1
        made = self.curve.spread
        down = np.sqrt(own**2 + min(below, 0.0) ** 2 + (wire_s[0] / base_s) ** 2 + made[0] ** 2)
        up = np.sqrt(own**2 + max(above, 0.0) ** 2 + (wire_s[1] / base_s) ** 2 + made[1] ** 2)
        return base_s * float(np.exp(-down)), base_s * float(1 + up)


def _term_names(curve: Curve) -> tuple[str, ...]:
    own = ("linear",) if curve.exchange is None else ("linear", "measured")
    trees = ("levels",) if curve.exchange is None and not curve.pipeline else ()
    known = curve.exchange is not None and (curve.buckets or curve.placement.probed)
    volume = () if known else ("sends",) if curve.pipeline else ("volume",)
    strong = ("divided", "slots") if curve.pipeline else ("divided",)
    between = ("between",) if curve.exchange is None and curve.placement.crosses else ()
    return ("fixed", *(strong if curve.kind == "strong" else ()), *volume, *between, *trees, *own, "slowest")


def _terms(curve: Curve, ranks: Floats) -> Floats:
    """(n, terms): each term by ranks, 1 at the largest measured scale.

    Computation is fixed and, in strong scaling, divided by the ranks (of pipelines times (m + N - 1)/m: the bubble;
    and besides what each of the m + N - 1 slots of their schedule costs whatever is in it: launches, a longest layer).
    Exchange grows with (N - 1)/N, as a ring's volume (of pipelines: `pipeline.hops`, of 1/m each), with N - 1, as a
    ring's latencies and shared links do, or log2 N, as those of trees and of halving, and as probed; where scales lie
    on one node and on several, within a node and with (n - 1)/n between n. The slowest of N ranks waits for nobody: the
    mean of the largest of N normal times.
    """
    most = np.array([float(curve.most_ranks)])
    forms: dict[str, Callable[[Floats], Floats]] = {
        "fixed": np.ones_like,
        "divided": lambda n: (1 + (n - 1) / (curve.microbatches or n) * curve.pipeline) / n,
        "slots": lambda n: (curve.microbatches or n) + n - 1,
        "sends": lambda n: hops(n, curve.microbatches or n, curve.flushes) / (curve.microbatches or n),
        "volume": lambda n: 1 - 1 / curve.placement.within(n),
        "between": lambda n: 1 - 1 / curve.placement.counts(n),
        "levels": np.log2,
        "linear": lambda n: n - 1,
        "measured": curve.exchange or np.ones_like,
        "slowest": lambda n: np.asarray(of_slowest(n), dtype=np.float64),
    }
    columns = [forms[name](ranks) / np.maximum(forms[name](most), 1e-12) for name in _term_names(curve)]
    return np.stack([np.broadcast_to(column, ranks.shape) for column in columns], axis=1)


def fit(curve: Curve) -> Model:
    """Coefficients of all terms, none below zero: least squares over whole steps and their parts, with priors.

    Input is taken off first: it is modelled on its own. The error per doubling is that of back-tests of the curve
    itself, beyond what noise of both sides explains, with DRIFT_PER_DOUBLING counting for two; by what the model misses
    its own points, intervals are wider; where it lies below the largest scale, what it misses is added (`anchor`).

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
    misfit = float(np.sqrt(np.mean(np.square(missed))))
    missed_s = anchor.missed_s(curve.points[-1], model.at(curve.most_ranks).parts, model.noise)
    noise = float(np.hypot(model.noise, misfit))
    return replace(model, drift=drift, misfit=misfit, noise=noise, missed_s=missed_s)


def _prior_share(curve: Curve, term: str) -> float:
    if term in ("levels", "linear"):
        return max(PRIOR_SHARES[term], growth.linear_share(curve))
    return PIPELINE_FIXED if term == "fixed" and curve.pipeline else PRIOR_SHARES[term]


def _fitted(curve: Curve) -> Model:
    curve = overlapped(curve)
    names = _term_names(curve)
    ranks = np.array([float(point.ranks) for point in curve.points])
    design = _terms(curve, ranks)
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
