"""Data parallelism that hides its exchange: gradient buckets, when each is sent, and what stays exposed.

Li et al. 2020 (PyTorch DDP, VLDB 13-12) and torch.distributed's reducer. Buckets lie on the last axis, in the order in
which backward fills them; arrays broadcast. Exchanges go one after another beside the backward pass.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.theory.arrays import Floats, not_negative, positive

FIRST_BUCKET_BYTES = 2**20
"""dist._DEFAULT_FIRST_BUCKET_BYTES: a small one, so that exchanging begins early; where no cap is given."""
BUCKET_BYTES = 25 * 2**20
"""The cap where bucket_cap_mb is None."""


def bucket_bytes(
    param_bytes: Iterable[float], bucket_cap_bytes: float | None = None, first_bytes: float = FIRST_BUCKET_BYTES
) -> list[float]:
    """Bytes of DDP's buckets from the bytes of each parameter's gradient, given in order of registration.

    Gradients come in reverse order (so DDP rebuilds its buckets after the first step). A bucket is closed by the
    parameter that fills it, which may make it larger than its cap. Without a cap the first one is small; a cap that is
    given holds for the first as well.
    """
    cap = BUCKET_BYTES if bucket_cap_bytes is None else bucket_cap_bytes
    first = first_bytes if bucket_cap_bytes is None else cap
    positive(bucket_cap_bytes=cap, first_bytes=first)
    buckets: list[float] = []
    filled = 0.0
    for size in reversed(list(param_bytes)):
        filled += size
        if filled >= (cap if buckets else first):
            buckets.append(filled)
            filled = 0.0
    return [*buckets, filled] if filled else buckets


def ready_s(bucket_bytes: ArrayLike, backward_s: ArrayLike) -> Floats:
    """When each bucket is full if backward spends its time evenly over the parameters: its share of them, cumulated.

    A profile of the backward pass is better: early layers of convolution nets take long for few parameters.
    """
    sizes, backward = not_negative(bucket_bytes=bucket_bytes, backward_s=backward_s)
    filled = np.cumsum(sizes, axis=-1)
    return backward[..., None] * filled / filled[..., -1:]


def last_end_s(ready_s: ArrayLike, communication_s: ArrayLike) -> Floats:
    """When the last exchange ends: start c_i = max(r_i, f_(i-1)), end f_i = c_i + T_i, from the start of backward."""
    ready, exchange = np.broadcast_arrays(*not_negative(ready_s=ready_s, communication_s=communication_s))
    end: Floats = np.zeros(ready.shape[:-1])
    for bucket in range(ready.shape[-1]):
        end = np.maximum(ready[..., bucket], end) + exchange[..., bucket]
    return np.asarray(end)[()]


def exposed_s(
    backward_s: ArrayLike,
    ready_s: ArrayLike,
    communication_s: ArrayLike,
    slowdown: ArrayLike = 1.0,
    overlap: bool = True,
) -> Floats:
    """Seconds that a step waits for gradients: f_k - backward, not below 0; all of it without `overlap`.

    `slowdown`: how much longer backward takes beside the exchange (they share cores, memory or multiprocessors); it
    delays buckets too, and its cost counts as exposed.
    """
    backward, exchange = not_negative(backward_s=backward_s, communication_s=communication_s)
    if not overlap:
        total: Floats = exchange.sum(-1)
        return total
    (kappa,) = positive(slowdown=slowdown)
    end = last_end_s(np.asarray(ready_s) * kappa[..., None], exchange)
    exposed: Floats = np.maximum(backward * kappa, end) - backward
    return exposed


def step_s(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    optimizer_s: ArrayLike,
    ready_s: ArrayLike,
    communication_s: ArrayLike,
    slowdown: ArrayLike = 1.0,
    overlap: bool = True,
) -> Floats:
    """T_fwd + max(T_bwd slowdown, f_k) + T_opt; without `overlap` the sum of all, which bounds it from above.

    From below: T_fwd + max(T_bwd, all exchanges) + T_opt.
    """
    forward, backward, update = not_negative(forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s)
    return forward + backward + exposed_s(backward, ready_s, communication_s, slowdown, overlap) + update
