"""What computation does not hide of DDP's exchange, by ranks: its buckets over a wire that the trials tell.

Li et al. 2020 (PyTorch DDP, VLDB 13-12) and torch.distributed's reducer: buckets lie on the last axis, in the order in
which backward fills them, and are exchanged one after another beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from benchsuite.predict.scaling.nodes import Placement
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import time_s

FIRST_BUCKET_BYTES = 2**20
"""dist._DEFAULT_FIRST_BUCKET_BYTES: a small one, so that exchanging begins early; where no cap is given."""
BUCKET_BYTES = 25 * 2**20
"""The cap where bucket_cap_mb is None."""
PRIORS, WIDTHS = (50e-6, 1e-9), (2.0, 3.0)
"""Of latency and seconds per byte: medians, and deviations of their logarithms."""
NOISE_S, NOISE = 1e-3, 0.1
STARTS = (-2.0, -1.0, 0.0, 1.0, 2.0)
DRAWS, SEED = 60, 20260101
Exposed = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Exposure:
    """What buckets leave exposed by ranks."""

    seconds: Exposed
    ends: Exposed | None
    """5th and 95th percentile, (2, n), where the wire was fitted."""
    slow: Exposed
    """Over a network `nodes.SLOWER` times as slow."""


ExposureOf = Callable[[Floats, float], Exposure]
"""Of buckets of any sizes, on a network so many times as fast."""


ExposedOf = Callable[[Floats, float], Exposed]


@dataclass(frozen=True)
class Wire:
    """A ring that was fitted; buckets may be others than those it was fitted to, on a network so many times as fast."""

    exposed: ExposedOf
    ends: ExposedOf
    """5th and 95th percentile of what is exposed by ranks, (2, n), from the posterior of both constants (Laplace's); of
    another network, whether latencies change with its bandwidth or stay."""
    latency_s: float
    s_per_byte: float


def buckets_of(num_bytes: float, cap_bytes: float | None = None) -> Floats:
    """DDP's buckets of gradients of so many bytes, where parameters are small beside a bucket.

    Without a cap the first one is small, and the others are of 25 MiB.
    """
    cap = BUCKET_BYTES if cap_bytes is None else cap_bytes
    first = min(FIRST_BUCKET_BYTES if cap_bytes is None else cap, num_bytes)
    rest = num_bytes - first
    whole = [first, *[cap] * int(rest // cap)]
    return np.array([*whole, rest % cap] if rest % cap else whole)


def exposed(buckets: Floats, backward_s: Callable[[Floats], Floats], bucket_s: Callable[[Floats], Floats]) -> Exposed:
    """Exposed seconds by ranks; `bucket_s` gives what each bucket takes, (n, buckets), `backward_s` (n,)."""

    def found(ranks: Floats) -> Floats:
        backward = backward_s(ranks)
        ready = backward[:, None] * np.cumsum(buckets) / buckets.sum()
        return exposed_s(backward, ready, bucket_s(ranks))

    return found


def exposed_s(backward_s: Floats, ready_s: Floats, exchange_s: Floats) -> Floats:
    """Seconds that a step waits for gradients after its backward pass, (n,).

    Of each bucket, (n, buckets): when it is full, and how long its exchange takes, which begins when those before it
    have ended. A bucket is full when backward, evenly spent over the parameters, has come to its end.
    """
    end = np.zeros(len(backward_s))
    for ready, exchange in zip(ready_s.T, exchange_s.T, strict=True):
        end = np.maximum(ready, end) + exchange
    return np.asarray(np.maximum(end - backward_s, 0.0))


def ring_s(buckets: Floats, latency_s: float, s_per_byte: float) -> Callable[[Floats], Floats]:
    """What each bucket takes in a ring of n, (n, buckets)."""
    return lambda ranks: time_s("all_reduce", ranks[:, None], buckets, latency_s, s_per_byte)


def from_exposed(buckets: Floats, backward_s: Callable[[Floats], Floats], measured_s: Mapping[int, float]) -> Wire:
    """The ring that leaves as much exposed as was measured: its constants, and what it leaves elsewhere.

    Where the exchange hides but for its last bucket, little is exposed at every measured scale, and most of it once it
    takes longer than the backward pass: a straight line through the measured ones would miss that.
    """
    ranks = np.array([*measured_s], dtype=np.float64)
    wanted = np.array([*measured_s.values()])

    def constants(place: Floats) -> tuple[float, float]:
        latency, per_byte = np.array(PRIORS) * np.exp(np.array(WIDTHS) * place)
        return float(latency), float(per_byte)

    def form(place: Floats, sizes: Floats, network: float = 1.0, messages: float = 1.0) -> Exposed:
        """On a network of so many times the bandwidth, whose messages take 1 / `messages` of their latency."""
        latency, per_byte = constants(place)
        return exposed(sizes, backward_s, ring_s(sizes, latency / messages, per_byte / network))

    def residuals(place: Floats) -> Floats:
        return np.concatenate([(form(place, buckets)(ranks) - wanted) / (NOISE_S + NOISE * wanted), place])

    tries = [least_squares(residuals, [0.0, start]) for start in STARTS]
    best = min(tries, key=lambda one: float(one.cost))
    slopes = np.asarray(best.jac, dtype=np.float64)
    spread = np.linalg.cholesky(np.linalg.inv(slopes.T @ slopes))
    draws = best.x + np.random.default_rng(SEED).standard_normal((DRAWS, 2)) @ spread.T

    def ends(sizes: Floats, network: float) -> Exposed:
        def found(count: Floats) -> Floats:
            forms = [[form(draw, sizes, network, messages)(count) for draw in draws] for messages in (network, 1.0)]
            low, high = np.quantile(forms, [0.05, 0.95], axis=1)
            return np.stack([low.min(axis=0), high.max(axis=0)])

        return found

    return Wire(lambda sizes, network: form(best.x, sizes, network, network), ends, *constants(best.x))


def by_nodes(
    buckets: Floats, backward_s: Callable[[Floats], Floats], measured_s: Mapping[int, float], placement: Placement
) -> Wire:
    """`from_exposed`; a wire within a node and one between nodes where scales used both, each from its own scales."""
    inside, beyond = (
        {n: s for n, s in measured_s.items() if (placement.at(n) > 1) == several} for several in (False, True)
    )
    if not inside or not beyond:
        return from_exposed(buckets, backward_s, measured_s)
    near, far = (from_exposed(buckets, backward_s, found) for found in (inside, beyond))

    def either(inside: ExposedOf, between: ExposedOf) -> ExposedOf:
        def found(sizes: Floats, network: float) -> Exposed:
            ends = inside(sizes, network), between(sizes, network)
            return lambda ranks: np.where(placement.several(ranks), ends[1](ranks), ends[0](ranks))

        return found

    exposing, ends = either(near.exposed, far.exposed), either(near.ends, far.ends)
    return Wire(exposing, ends, far.latency_s, far.s_per_byte)


def faster(bucket_s: Callable[[Floats], Floats], network: float) -> Callable[[Floats], Floats]:
    """The same over a network so many times as fast."""
    return lambda ranks: bucket_s(ranks) / network
