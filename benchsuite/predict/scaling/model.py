"""The model of a series: parts of a step as sums of terms that grow with ranks, and what it says of other ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import input_wait
from benchsuite.predict.scaling.curve import Curve, Outlook
from benchsuite.predict.scaling.exposed_communication import Overlap, buckets_of
from benchsuite.predict.scaling.nodes import unmeasured_s
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.input import of_slowest
from benchsuite.predict.theory.interval import LEVEL, doublings_beyond
from benchsuite.predict.theory.pipeline import hops


@dataclass(frozen=True)
class Model:
    """Draws from the average of all candidates (`series.fit`): each has terms, and a level that it misses steps by."""

    curve: Curve
    names: tuple[str, ...]
    draws: Floats
    """(DRAWS, terms): seconds of each term at the largest measured scale; 0 of terms that a draw's candidate lacks."""
    level: Floats
    """(DRAWS, points): log of what the step at each scale is over the terms, noise taken off."""
    spread: Floats
    """(DRAWS, 3): relative deviations of that level at the largest scale, of its change in a doubling beyond, and of a
    measured step."""
    linear: float
    """How sure it is that nothing is lost but what was lost already: the weight of the candidate without more terms."""
    seed: int = 20260102

    def at(self, ranks: int, network: float = 1.0, storage: float = 1.0) -> Outlook:
        """The step at so many ranks, were the network and the shared file system so many times as fast.

        At a measured scale, and where nothing else is asked for, that is the measurement.
        """
        overlap = self.curve.overlap
        left = network if overlap is None else network / overlap.network
        parts, low, high = self._without_input(ranks, network, left)
        base = sum(parts.values())
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

    def _without_input(self, ranks: int, network: float, left: float) -> tuple[dict[str, float], float, float]:
        """Seconds by part, and the ends of their sum, of a step without input; `left`: a network that buckets lack."""
        speeds = {name: network for name, part in PART_OF.items() if part == "communication"} | {"measured": left}
        places = np.log2([point.ranks for point in self.curve.points])
        level = np.array([np.interp(np.log2(ranks), places, row) for row in self.level])
        own = self.draws * terms_of(self.curve, np.array([float(ranks)])) * np.exp(level)[:, None]
        asked = own / [speeds.get(name, 1.0) for name in self.names]
        overlap, points = self.curve.overlap, self.curve.points
        is_other = overlap is not None and (overlap.cap_bytes is not None or overlap.network != 1)
        known = {} if is_other else {point.ranks: point.base_s for point in points}
        scale = known.get(ranks, float(np.median(own.sum(axis=1)))) / float(own.mean(axis=0).sum())
        means = scale * asked.mean(axis=0)
        parts = {part: float(means[[PART_OF[name] == part for name in self.names]].sum()) for part in PARTS}
        base = sum(parts.values())
        as_measured = network == 1 and ranks in known
        whole = np.full(len(asked), base) if as_measured else asked.sum(axis=1)
        low, high = self._ends(whole * base / np.median(whole), ranks, as_measured)
        slower, faster = (0.0, 0.0) if as_measured else self._wire_ends(ranks, left)
        below, above = self.curve.spread
        return parts, (low + slower) * float(np.exp(-below)), (high + faster) * (1 + above)

    def _ends(self, whole: Floats, ranks: int, as_measured: bool) -> tuple[float, float]:
        """Ends of one more median of repeats: by draws, the level's change beyond what was measured, and noise."""
        level, change, noise = self.spread.T
        beyond = float(doublings_beyond(ranks, self.curve.most_ranks))
        deviation = noise if as_measured else np.sqrt(level**2 + change**2 * beyond + noise**2)
        drawn = np.log(whole) + deviation * np.random.default_rng(self.seed).standard_normal(len(whole))
        low, high = np.exp(np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]))
        middle = float(np.median(whole))
        return min(float(low), middle), max(float(high), middle)

    def _wire_ends(self, ranks: int, network: float) -> tuple[float, float]:
        """How far what is exposed may lie below and above, by the constants of the wire."""
        overlap = self.curve.overlap
        if overlap is None or overlap.wires is None:
            return 0.0, 0.0
        here, most = np.array([float(ranks)]), np.array([float(self.curve.most_ranks)])
        measured_s = self.draws[:, self.names.index("measured")].mean()
        scale = measured_s / max(float(overlap.seconds(most)[0]), 1e-12)
        away = (overlap.ends(here)[:, 0] - overlap.seconds(here)[0]) * scale / network
        return min(float(away[0]), 0.0), max(float(away[1]), 0.0)


LEAST_EXPOSED = 0.01
"""Share of the step: where less is exposed, how far the wire misses it says nothing of other buckets."""


def with_buckets(model: Model, cap_mb: float) -> Model:
    """The model, had DDP's buckets this cap (MiB): the same gradients, backward pass and wire.

    Raises:
        UserError: no DDP, or no measurement tells what a bucket takes.
    """
    curve = model.curve
    if not curve.buckets:
        raise UserError(f"{curve.title}: --bucket-cap-mb: no DDP with buckets at 2 ranks or more; allowed: of ddp")
    if curve.overlap is None:
        raise UserError(
            f"{curve.title}: --bucket-cap-mb: its trials do not tell exposed communication and backward passes, and no "
            "`benchsuite probe comm` of these nodes does"
        )
    cap_bytes = cap_mb * 2**20
    sent = curve.sent_share * buckets_of(sum(curve.buckets) / curve.sent_share, cap_bytes)  # the cap counts gradients
    if sent.shape == curve.overlap.buckets.shape and np.allclose(sent, curve.overlap.buckets):
        return model  # what was measured
    return _exposing(model, replace(curve.overlap, buckets=sent, cap_bytes=cap_bytes))


def with_network(model: Model, network: float) -> Model:
    """The model, were the network so many times as fast: what that leaves exposed of DDP's buckets.

    As it is where no buckets are modelled; `Model.at` then divides all that is exposed.
    """
    if network == 1 or model.curve.overlap is None:
        return model
    return _exposing(model, replace(model.curve.overlap, network=network))


def _exposing(model: Model, asked: Overlap) -> Model:
    """The model with other buckets or another network: what was exposed grows or shrinks with it."""
    assert model.curve.overlap is not None
    place, most = model.names.index("measured"), np.array([float(model.curve.most_ranks)])
    before_s, after_s = (float(overlap.seconds(most)[0]) for overlap in (model.curve.overlap, asked))
    known = before_s > LEAST_EXPOSED * model.curve.points[-1].middle_s
    scales = np.ones(len(model.names))
    scales[place] = after_s / before_s if known else 1.0
    draws = model.draws * scales
    if not known:
        draws[:, place] = after_s
    changed = replace(model.curve, exchange=asked.seconds, overlap=asked)
    return replace(model, curve=changed, draws=draws)


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
    "pairs": "communication",
    "full": "communication",
    "fuller": "communication",
    "slowest": "imbalance",
}


def terms_of(curve: Curve, ranks: Floats) -> Floats:
    """(n, terms): each term by ranks, 1 at the largest measured scale.

    Computation is fixed and, in strong scaling, divided by the ranks (of pipelines times (m + N - 1)/m: the bubble;
    and besides what each of the m + N - 1 slots of their schedule costs whatever is in it: launches, a longest layer).
    Exchange grows with (N - 1)/N, as a ring's volume (of pipelines: `pipeline.hops`, of 1/m each), with N - 1, as a
    ring's latencies and shared links do, or log2 N, as those of trees and of halving, and as probed; where scales lie
    on one node and on several, within a node and with (n - 1)/n between n. The slowest of N ranks waits for nobody: the
    mean of the largest of N normal times. Where only whole steps are known: what all pairs of ranks cost one another
    (the coherency of the Universal Scalability Law), and a medium that is full from the last scale but one on, or from
    halfway to the last.
    """
    most = np.array([float(curve.most_ranks)])
    full = float(curve.points[-2].ranks)

    def work(n: Floats) -> Floats:
        return 1 / n if curve.kind == "strong" else np.ones_like(n)

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
        "pairs": lambda n: n * (n - 1) * work(n),
        "full": lambda n: np.maximum(n / full - 1, 0) * work(n),
        "fuller": lambda n: np.maximum(n / np.sqrt(full * most[0]) - 1, 0) * work(n),
        "slowest": lambda n: np.asarray(of_slowest(n), dtype=np.float64),
    }
    columns = [forms[name](ranks) / np.maximum(forms[name](most), 1e-12) for name in term_names(curve)]
    return np.stack([np.broadcast_to(column, ranks.shape) for column in columns], axis=1)


def term_names(curve: Curve) -> tuple[str, ...]:
    """The step's own term first: what a perfect series has and nothing else; then what may be lost."""
    own = ("linear",) if curve.exchange is None else ("linear", "measured")
    trees = ("levels",) if curve.exchange is None and not curve.pipeline else ()
    carried = curve.exchange is not None and (curve.buckets or curve.placement.probed)
    volume = () if carried else ("sends",) if curve.pipeline else ("volume",)
    strong = ("divided", "fixed", "slots") if curve.pipeline else ("divided", "fixed")
    between = ("between",) if curve.exchange is None and curve.placement.crosses else ()
    told = any(point.parts for point in curve.points)
    known = told or curve.exchange is not None or curve.pipeline or curve.placement.crosses
    whole = () if known else ("pairs", "full", "fuller")
    return (*(strong if curve.kind == "strong" else ("fixed",)), *volume, *between, *trees, *own, "slowest", *whole)
