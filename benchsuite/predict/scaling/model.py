"""The model of a series: parts of a step as sums of terms that grow with ranks, and what it says of other ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import t as student

from benchsuite.predict.scaling import input_wait
from benchsuite.predict.scaling.curve import Curve, Outlook, Point
from benchsuite.predict.scaling.nodes import unmeasured_s
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.interval import LEVEL, doublings_beyond
from benchsuite.predict.theory.pipeline import hops
from benchsuite.predict.theory.transformer_step import of_slowest

LEAST_MISSED, NOISES = 0.05, 2.0
"""Share of the step, and standard deviations of its median, that are left to the fit."""


def offsets_s(largest: Point, fitted: Mapping[str, float], noise: float) -> dict[str, float]:
    """Seconds by part that the fit misses of the largest scale's step without input; nothing where that is little.

    Divided as the parts are missed where they were told apart; else all of it is computation.
    """
    short = largest.base_s - sum(fitted[part] for part in ("compute", "communication", "imbalance"))
    if short <= max(LEAST_MISSED, NOISES * noise) * largest.base_s:
        return {}
    told = {part: seconds for part, seconds in (largest.parts or {}).items() if seconds is not None}
    below = {part: max(seconds - fitted[part], 0.0) for part, seconds in told.items()}
    if not sum(below.values()):
        return {"compute": short}
    return {part: short * seconds / sum(below.values()) for part, seconds in below.items()}


def added(parts: Mapping[str, float], missed: Mapping[str, float], network: float) -> dict[str, float]:
    """Parts of a step with what the fit misses, on a network so many times as fast."""
    speed = {"communication": network}
    return {part: seconds + missed.get(part, 0.0) / speed.get(part, 1.0) for part, seconds in parts.items()}


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
    rms_fit_error: float = 0.0
    """Root mean square of fitted / measured - 1 over the points; part of the noise."""
    offset_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part that the fit misses of the largest scale (`offsets_s`): added there and beyond."""

    def at(self, ranks: int, network: float = 1.0, storage: float = 1.0) -> Outlook:
        """The step at so many ranks, were the network and the shared file system so many times as fast."""
        terms = terms_of(self.curve, np.array([float(ranks)]))[0]
        overlap = self.curve.overlap
        left = network if overlap is None else network / overlap.network
        speeds = {**{name: network for name, part in PART_OF.items() if part == "communication"}, "measured": left}
        terms = terms / np.array([speeds.get(name, 1.0) for name in self.names])
        seconds = terms * self.coefficients
        base = float(seconds.sum())
        parts = {part: float(seconds[[PART_OF[name] == part for name in self.names]].sum()) for part in PARTS}
        low, high = self._ends(self.draws @ terms, self._wire_ends(ranks, left), base, ranks)
        parts = added(parts, self.offset_s if ranks >= self.curve.most_ranks else {}, network)
        base, low, high = (seconds * sum(parts.values()) / base for seconds in (base, low, high))
        slow = None if overlap is None else overlap.slow
        high += unmeasured_s(self.curve.placement, slow, ranks, parts["communication"], left)
        (load, load_high), (load_low, low_high), (load_top, _) = (
            input_wait.load_s(self.curve, ranks, end_s, storage) for end_s in (base, low, high)
        )
        share = base / (base + load)
        return Outlook(
            ranks,
            base + load,
            low + min(load, load_low),
            high + max(load_high, load_top),
            load,
            load_high,
            {**parts, "load": load},
            self.curve.samples(ranks),
            (share, min(share, low / (low + max(load_low, low_high))), max(share, high / (high + load_top))),
            self.curve.au_scale(ranks),
        )

    def _wire_ends(self, ranks: int, network: float) -> tuple[float, float]:
        """How far what is exposed may lie below and above, by the constants of the wire."""
        overlap = self.curve.overlap
        if overlap is None or overlap.wires is None:
            return 0.0, 0.0
        here, most = np.array([float(ranks)]), np.array([float(self.curve.most_ranks)])
        scale = self.coefficients[self.names.index("measured")] / max(float(overlap.seconds(most)[0]), 1e-12)
        away = (overlap.ends(here)[:, 0] - overlap.seconds(here)[0]) * scale / network
        return min(float(away[0]), 0.0), max(float(away[1]), 0.0)

    def _ends(self, drawn: Floats, wire_s: tuple[float, float], base_s: float, ranks: int) -> tuple[float, float]:
        """Of the step without input, for one more median of repeats: by draws, wire, noise and drift."""
        drift = self.drift * float(doublings_beyond(ranks, self.curve.most_ranks))
        own = float(student.ppf(0.5 + LEVEL / 2, self.freedom)) * float(np.hypot(self.noise, drift))
        below, above = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]) / base_s - 1
        made = self.curve.spread
        down = np.sqrt(own**2 + min(below, 0.0) ** 2 + (wire_s[0] / base_s) ** 2 + made[0] ** 2)
        up = np.sqrt(own**2 + max(above, 0.0) ** 2 + (wire_s[1] / base_s) ** 2 + made[1] ** 2)
        return base_s * float(np.exp(-down)), base_s * float(1 + up)


PARTS = ("compute", "communication", "imbalance")

PART_OF = {
    "fixed": "compute",
    "divided": "compute",
    "slots": "compute",
    "volume": "communication",
    "sends": "communication",
    "between": "communication",
    "levels": "communication",
    "linear": "communication",
    "measured": "communication",
    "slowest": "imbalance",
}


def terms_of(curve: Curve, ranks: Floats) -> Floats:
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
    columns = [forms[name](ranks) / np.maximum(forms[name](most), 1e-12) for name in term_names(curve)]
    return np.stack([np.broadcast_to(column, ranks.shape) for column in columns], axis=1)


def term_names(curve: Curve) -> tuple[str, ...]:
    own = ("linear",) if curve.exchange is None else ("linear", "measured")
    trees = ("levels",) if curve.exchange is None and not curve.pipeline else ()
    known = curve.exchange is not None and (curve.buckets or curve.placement.probed)
    volume = () if known else ("sends",) if curve.pipeline else ("volume",)
    strong = ("divided", "slots") if curve.pipeline else ("divided",)
    between = ("between",) if curve.exchange is None and curve.placement.crosses else ()
    return ("fixed", *(strong if curve.kind == "strong" else ()), *volume, *between, *trees, *own, "slowest")
