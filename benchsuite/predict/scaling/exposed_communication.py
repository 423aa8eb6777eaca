"""What computation does not hide of DDP's exchange, by ranks: its buckets over a wire that the trials tell.

Li et al. 2020 (PyTorch DDP, VLDB 13-12) and torch.distributed's reducer: buckets lie on the last axis, in the order in
which backward fills them, and are exchanged one after another beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from benchsuite.predict.scaling.nodes import SLOWER, Placement
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import time_s

FIRST_BUCKET_BYTES = 2**20
"""dist._DEFAULT_FIRST_BUCKET_BYTES: a small one, so that exchanging begins early; where no cap is given."""
BUCKET_BYTES = 25 * 2**20
"""The cap where bucket_cap_mb is None."""
PRIORS, WIDTHS = (50e-6, 1e-9), (2.0, 3.0)
"""Priors of latency and seconds per byte: medians, and deviations of their logarithms."""
NOISE_S, NOISE = 1e-3, 0.1
STARTS = (-2.0, -1.0, 0.0, 1.0, 2.0)
DRAWS, SEED = 60, 20260101
ByRanks = Callable[[Floats], Floats]
"""Seconds by ranks: (n,) of (n,), or (n, buckets) of what each bucket takes."""


@dataclass(frozen=True)
class Overlap:
    """DDP's buckets beside the backward pass, and the wire that carries them: as probed, or rings that were fitted."""

    buckets: Floats
    """Bytes that are sent at a time."""
    backward_s: ByRanks
    placement: Placement
    bucket_s: Callable[[Floats], ByRanks] | None
    """What buckets of any sizes take, as probed."""
    wires: Floats | None
    """(2, 1 + DRAWS, 2), where not probed: of the ring within a node and of that between nodes latency and seconds per
    byte, the best first and then draws of them (`ring_of`)."""
    network: float = 1.0
    """A network so many times as fast."""
    cap_bytes: float | None = None
    """The buckets are those of a what-if."""

    def seconds(self, ranks: Floats) -> Floats:
        """What is left exposed, (n,)."""
        return exposed(self.buckets, self.backward_s, self._each_s())(ranks)

    def slow(self, ranks: Floats) -> Floats:
        """What is left exposed over a network SLOWER times as slow, (n,)."""
        each_s = self._each_s()
        return exposed(self.buckets, self.backward_s, lambda n: SLOWER * each_s(n))(ranks)

    def ends(self, ranks: Floats) -> Floats:
        """5th and 95th percentile of what is exposed, (2, n), by the draws of the rings.

        Of another network, whether latencies change with its bandwidth or stay.
        """
        assert self.wires is not None
        found = [
            [
                exposed(self.buckets, self.backward_s, self._each_s(draw, messages))(ranks)
                for draw in range(1, self.wires.shape[1])
            ]
            for messages in (self.network, 1.0)
        ]
        low, high = np.quantile(found, [0.05, 0.95], axis=1)
        return np.stack([low.min(axis=0), high.max(axis=0)])

    def _each_s(self, draw: int = 0, messages: float | None = None) -> ByRanks:
        """What each bucket takes; of rings, with messages that take 1 / `messages` of their latency."""
        bucket_s, wires = self.bucket_s, self.wires
        if wires is None:
            assert bucket_s is not None
            return lambda ranks: bucket_s(self.buckets)(ranks) / self.network

        def found(ranks: Floats) -> Floats:
            latency, per_byte = wires[(self.placement.counts(ranks) > 1).astype(int), draw].T[..., None]
            return ring_s(self.buckets, latency / (messages or self.network), per_byte / self.network)(ranks)

        return found


def buckets_of(num_bytes: float, cap_bytes: float | None = None) -> Floats:
    """DDP's buckets of gradients of so many bytes, where parameters are small beside a bucket.

    Without a cap the first one is small, and the others are of 25 MiB.
    """
    cap = BUCKET_BYTES if cap_bytes is None else cap_bytes
    first = min(FIRST_BUCKET_BYTES if cap_bytes is None else cap, num_bytes)
    rest = num_bytes - first
    whole = [first, *[cap] * int(rest // cap)]
    return np.array([*whole, rest % cap] if rest % cap else whole)


def exposed(buckets: Floats, backward_s: ByRanks, bucket_s: ByRanks) -> ByRanks:
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


def ring_s(buckets: Floats, latency_s: ArrayLike, s_per_byte: ArrayLike) -> ByRanks:
    """What each bucket takes in a ring of n, (n, buckets)."""
    return lambda ranks: time_s("all_reduce", ranks[:, None], buckets, latency_s, s_per_byte)


def ring_of(buckets: Floats, backward_s: ByRanks, measured_s: Mapping[int, float]) -> Floats:
    """Latency and seconds per byte of the ring that leaves as much exposed as was measured: (1 + DRAWS, 2).

    The best first, then draws from the posterior of both (Laplace's). Where the exchange hides but for its last bucket,
    little is exposed at every measured scale, and most of it once it takes longer than the backward pass: a straight
    line through the measured ones would miss that.
    """
    ranks = np.array([*measured_s], dtype=np.float64)
    wanted = np.array([*measured_s.values()])

    def constants(place: Floats) -> Floats:
        return np.array(PRIORS) * np.exp(np.array(WIDTHS) * place)

    def residuals(place: Floats) -> Floats:
        found = exposed(buckets, backward_s, ring_s(buckets, *constants(place)))(ranks)
        return np.concatenate([(found - wanted) / (NOISE_S + NOISE * wanted), place])

    tries = [least_squares(residuals, [0.0, start]) for start in STARTS]
    best = min(tries, key=lambda one: float(one.cost))
    slopes = np.asarray(best.jac, dtype=np.float64)
    spread = np.linalg.cholesky(np.linalg.inv(slopes.T @ slopes))
    draws = best.x + np.random.default_rng(SEED).standard_normal((DRAWS, 2)) @ spread.T
    return constants(np.vstack([best.x, draws]))


def rings_of(buckets: Floats, backward_s: ByRanks, measured_s: Mapping[int, float], placement: Placement) -> Floats:
    """`ring_of` within a node and between nodes, each from its own scales; twice the same where one was used alone."""
    apart = [{n: s for n, s in measured_s.items() if (placement.at(n) > 1) == several} for several in (False, True)]
    used = apart if all(apart) else [measured_s]
    found = [ring_of(buckets, backward_s, scales) for scales in used]
    return np.stack([found[0], found[-1]])
