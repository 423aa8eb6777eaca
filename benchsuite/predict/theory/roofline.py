"""Roofline: what compute and memory bandwidth allow, and how tiles of a matrix product fill a device."""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.theory.arrays import Floats, fraction, not_negative, positive, whole


def attainable_flops(intensity: ArrayLike, peak_flops: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """FLOP/s that work of `intensity` FLOPs a byte can reach: min(peak, intensity x bandwidth).

    Williams, Waterman, Patterson 2009. Dense peak of the precision used; bandwidth of the memory the bytes come from.
    """
    i, peak, bandwidth = positive(intensity=intensity, peak_flops=peak_flops, bytes_per_s=bytes_per_s)
    bound: Floats = np.minimum(peak, i * bandwidth)
    return bound


def ridge_intensity(peak_flops: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """FLOPs a byte from which on compute is the bound: peak / bandwidth."""
    peak, bandwidth = positive(peak_flops=peak_flops, bytes_per_s=bytes_per_s)
    return peak / bandwidth


def time_s(
    flops: ArrayLike,
    num_bytes: ArrayLike,
    peak_flops: ArrayLike,
    bytes_per_s: ArrayLike,
    compute_efficiency: ArrayLike = 1.0,
    memory_efficiency: ArrayLike = 1.0,
) -> Floats:
    """Seconds of a kernel: max(FLOPs / (peak e), bytes / (bandwidth e)); the two overlap fully."""
    f, size = not_negative(flops=flops, num_bytes=num_bytes)
    peak, bandwidth = positive(peak_flops=peak_flops, bytes_per_s=bytes_per_s)
    fraction(compute_efficiency=compute_efficiency, memory_efficiency=memory_efficiency)
    compute, memory = positive(compute_efficiency=compute_efficiency, memory_efficiency=memory_efficiency)
    longer: Floats = np.maximum(f / (peak * compute), size / (bandwidth * memory))
    return longer


def gemm_flops(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Floats:
    """(M x K) times (K x N): 2 M N K."""
    rows, columns, inner = whole(m=m, n=n, k=k)
    return 2 * rows * columns * inner


def gemm_intensity(m: ArrayLike, n: ArrayLike, k: ArrayLike, bytes_per_element: ArrayLike = 2) -> Floats:
    """FLOPs a byte of (M x K) times (K x N), each matrix moved once: 2MNK / (size (MK + KN + MN))."""
    rows, columns, inner = whole(m=m, n=n, k=k)
    (size,) = positive(bytes_per_element=bytes_per_element)
    return 2 * rows * columns * inner / (size * (rows * inner + inner * columns + rows * columns))


def tile_waves(
    m: ArrayLike, n: ArrayLike, multiprocessors: ArrayLike, tile_m: ArrayLike = 256, tile_n: ArrayLike = 128
) -> Floats:
    """Rounds in which the tiles of an M x N product go over the multiprocessors: ceil(ceil(M/256) ceil(N/128) / SMs).

    NVIDIA, "Matrix multiplication background user's guide" (wave quantization); one tile a multiprocessor at a time.
    """
    rows, columns, units = whole(m=m, n=n, multiprocessors=multiprocessors)
    high, wide = whole(tile_m=tile_m, tile_n=tile_n)
    waves: Floats = np.ceil(np.ceil(rows / high) * np.ceil(columns / wide) / units)
    return waves


def tile_efficiency(
    m: ArrayLike, n: ArrayLike, multiprocessors: ArrayLike, tile_m: ArrayLike = 256, tile_n: ArrayLike = 128
) -> Floats:
    """Useful share of the tiles' slots: M N / (waves SMs 256 128), for edges cut off and a last wave half empty."""
    rows, columns, units = whole(m=m, n=n, multiprocessors=multiprocessors)
    high, wide = whole(tile_m=tile_m, tile_n=tile_n)
    return rows * columns / (tile_waves(m, n, multiprocessors, tile_m, tile_n) * units * high * wide)


def products_efficiency(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    multiprocessors: ArrayLike,
    tile_m: ArrayLike = 256,
    tile_n: ArrayLike = 128,
) -> Floats:
    """Efficiency of products one after another, all of M, N and K: sum of M N K over that of M N K / efficiency."""
    work = gemm_flops(m, n, k)
    taken = work / tile_efficiency(m, n, multiprocessors, tile_m, tile_n)
    return np.asarray(np.sum(work) / np.sum(taken))
