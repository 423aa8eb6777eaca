"""Roofline and tiles against figures of published slides and NVIDIA's guide."""

import numpy as np
import pytest

from benchsuite.predict.theory import roofline

A100, A100_BYTES = 312e12, 2039e9
"""Dense bf16, and the 80 GB card's memory."""


def test_ridge() -> None:
    """312e12 / 2039e9 = 153 FLOP/B (a slide prints 143)."""
    assert roofline.ridge_intensity(A100, A100_BYTES) == pytest.approx(153.0, abs=0.05)


def test_attainable() -> None:
    """Adding two fp16 numbers does 1 FLOP for 6 bytes: bound by memory; the ridge reaches the peak."""
    found = roofline.attainable_flops([1 / 6, A100 / A100_BYTES, 341], A100, A100_BYTES)
    assert found == pytest.approx([A100_BYTES / 6, A100, A100])


def test_gemm() -> None:
    """1024^3 in fp16: 341.3 FLOP/B."""
    assert roofline.gemm_flops(1024, 1024, 1024) == 2 * 1024**3
    assert roofline.gemm_intensity(1024, 1024, 1024) == pytest.approx(341.33, abs=0.005)
    assert roofline.gemm_intensity(1024, 1024, 1, 4) == pytest.approx(2 * 2**20 / (4 * (2**11 + 2**20)))


def test_time_is_the_longer_bound() -> None:
    assert roofline.time_s(1e12, 1e9, 1e12, 1e9) == 1
    assert roofline.time_s([1e12, 1e12], [2e9, 0.5e9], 1e12, 1e9, 0.5, 0.8).tolist() == [2.5, 2]
    with pytest.raises(ValueError, match="compute_efficiency 2 is not allowed; allowed: a number from 0 to 1"):
        roofline.time_s(1, 1, 1, 1, 2)
    with pytest.raises(ValueError, match="memory_efficiency 0 is not allowed"):
        roofline.time_s(1, 1, 1, 1, 1, 0)


def test_waves() -> None:
    """108 SMs, tiles of 256 x 128: 12 x 9 tiles are one wave, one row more makes it two."""
    assert roofline.tile_waves([3072, 3073], 1152, 108).tolist() == [1, 2]
    assert roofline.tile_efficiency(3072, 1152, 108) == 1
    assert roofline.tile_efficiency(3073, 1152, 108) == pytest.approx(3073 / 3072 / 2)
    assert roofline.tile_waves([256, 257, 256], [13824, 13824, 13825], 108).tolist() == [1, 2, 2]
    assert roofline.tile_waves(1, 1, 1) == 1
    assert roofline.tile_waves(64, 64, 4, tile_m=16, tile_n=16) == 4


def test_waves_never_lose_work() -> None:
    rows = np.arange(1, 5000, 37)
    shares = roofline.tile_efficiency(rows, rows[:, None], 132)
    assert np.all((shares > 0) & (shares <= 1)) and shares.shape == (len(rows), len(rows))


def test_refuses() -> None:
    with pytest.raises(ValueError, match=r"m 0 is not allowed; allowed: a whole number, 1 or above"):
        roofline.tile_waves(0, 1, 108)
    with pytest.raises(ValueError, match="bytes_per_s 0 is not allowed"):
        roofline.ridge_intensity(1, 0)
