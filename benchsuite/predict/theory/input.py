"""Input: accelerator utilization, the knee of a shared file system, and the bandwidth required.

t_c compute_s (a step with its input in memory), t_io input_s (to have a batch ready), N num_ranks.
AU is compute time over total time (MLPerf Storage rules, section 4), here of an epoch long enough that its ends vanish.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri_exp

from benchsuite.predict.theory.arrays import Floats, fraction, not_negative, positive, whole

QUANTILES = 2001
"""Points of the integral for the mean of a maximum; its error is below 1e-4 standard deviations up to 10^6 ranks."""


def shared_input_s(
    num_ranks: ArrayLike,
    batch_size: ArrayLike,
    record_bytes: ArrayLike,
    shared_bytes_per_s: ArrayLike,
    client_input_s: ArrayLike = 0.0,
) -> Floats:
    """t_io where N ranks share a file system of bandwidth B: the client's own, or N batch record / B if longer."""
    (n,), (batch,) = whole(num_ranks=num_ranks), positive(batch_size=batch_size)
    record, client = not_negative(record_bytes=record_bytes, client_input_s=client_input_s)
    (bandwidth,) = positive(shared_bytes_per_s=shared_bytes_per_s)
    longer: Floats = np.maximum(client, n * batch * record / bandwidth)
    return longer


def au(
    compute_s: ArrayLike,
    input_s: ArrayLike,
    prefetch: bool = True,
    num_ranks: ArrayLike = 1,
    jitter_s: ArrayLike = 0.0,
) -> Floats:
    """Accelerator utilization: t_c / step, where step is max(t_c, t_io) prefetched and t_c + t_io without.

    `jitter_s`: standard deviation of a rank's step, normal and independent. Ranks meet in every step, so the slowest of
    N sets the pace: `mean_of_slowest` of max(t_c, t_io + jitter) prefetched (a queue that never runs ahead: the worst
    case), of t_c + t_io + jitter without. One rank without jitter: min(1, t_c / t_io) and t_c / (t_c + t_io).
    """
    compute, reading = positive(compute_s=compute_s)[0], not_negative(input_s=input_s)[0]
    if prefetch:
        return compute / slowest_s(compute, reading, jitter_s, num_ranks)
    return compute / (compute + mean_of_slowest(reading, jitter_s, num_ranks))


def knee(
    shared_bytes_per_s: ArrayLike,
    compute_s: ArrayLike,
    batch_size: ArrayLike,
    record_bytes: ArrayLike,
    au_target: ArrayLike = 1.0,
) -> Floats:
    """Ranks N* that a shared file system of bandwidth B feeds at AU `au_target`: B t_c / (target batch record).

    A real number: round it down. Below it AU is that of the client; above it N*/N with prefetching.
    """
    return positive(shared_bytes_per_s=shared_bytes_per_s)[0] / required_bytes_per_s(
        1, compute_s, batch_size, record_bytes, au_target
    )


def required_bytes_per_s(
    num_ranks: ArrayLike,
    compute_s: ArrayLike,
    batch_size: ArrayLike,
    record_bytes: ArrayLike,
    au_target: ArrayLike = 1.0,
) -> Floats:
    """Read bandwidth that N ranks need for AU `au_target`: N target batch record / t_c (prefetched)."""
    (n,), (compute,) = whole(num_ranks=num_ranks), positive(compute_s=compute_s)
    batch, record = positive(batch_size=batch_size, record_bytes=record_bytes)
    fraction(au_target=au_target)
    return n * positive(au_target=au_target)[0] * batch * record / compute


def samples_per_s(num_ranks: ArrayLike, au: ArrayLike, batch_size: ArrayLike, compute_s: ArrayLike) -> Floats:
    """Samples a second of all ranks: N AU batch / t_c; `au` a fraction."""
    (n,), (utilization,) = whole(num_ranks=num_ranks), not_negative(au=au)
    batch, compute = positive(batch_size=batch_size, compute_s=compute_s)
    return n * utilization * batch / compute


def staging_break_even_epochs(stage_s: ArrayLike, shared_epoch_s: ArrayLike, staged_epoch_s: ArrayLike) -> Floats:
    """Epochs from which on copying to node-local storage pays: stage_s / (shared - staged); inf where it never does."""
    copying, shared, staged = not_negative(
        stage_s=stage_s, shared_epoch_s=shared_epoch_s, staged_epoch_s=staged_epoch_s
    )
    saved = shared - staged
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(saved > 0, copying / saved, np.inf)[()]


def mean_of_slowest(mean_s: ArrayLike, deviation_s: ArrayLike, num_ranks: ArrayLike) -> Floats:
    """E[max of N] of independent normal times: mean + deviation x the mean of N standard normals' largest."""
    (mean, deviation), (n,) = not_negative(mean_s=mean_s, deviation_s=deviation_s), whole(num_ranks=num_ranks)
    return mean + deviation * _largest(n, -np.inf)


def of_slowest(num_ranks: Floats) -> Floats:
    """How many standard deviations the slowest of N ranks lies behind the mean, on average; (n,)."""
    numbers, places = np.unique(num_ranks, return_inverse=True)
    found: Floats = mean_of_slowest(0.0, 1.0, numbers)[places]
    return found


def slowest_s(floor_s: ArrayLike, mean_s: ArrayLike, deviation_s: ArrayLike, num_ranks: ArrayLike) -> Floats:
    """E[max(floor, max of N independent normal times)]: a step in which computing hides what input does not overrun."""
    floor, mean, deviation = not_negative(floor_s=floor_s, mean_s=mean_s, deviation_s=deviation_s)
    (n,) = whole(num_ranks=num_ranks)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(deviation > 0, (floor - mean) / np.where(deviation > 0, deviation, 1.0), 0.0)
    jittered = mean + deviation * _largest(n, bound)
    return np.where(deviation > 0, jittered, np.maximum(floor, mean))[()]


def _largest(n: Floats, floor: ArrayLike) -> Floats:
    """E[max(floor, Z_1 .. Z_n)] of standard normals: the mean over quantiles u of max(floor, Phi^-1(u^(1/n)))."""
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    counts, bounds = np.broadcast_arrays(n, floor)
    values = ndtri_exp(np.log(middles) / counts[..., None])
    mean: Floats = np.maximum(values, bounds[..., None]).mean(-1)
    return mean
