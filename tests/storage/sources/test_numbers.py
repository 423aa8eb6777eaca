"""Intensities of volumes become float32: rounded where they are fractions, refused where they would be others."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.sources.volumes import volume_sample
from tests.storage.sources.made import refusal

LABEL = np.zeros((2, 2, 2), np.uint8)


def volume_of(value: float, dtype: str) -> np.ndarray:
    image = np.zeros((2, 2, 2), dtype)
    image[1, 0, 1] = value
    return image


def intensity(value: float, dtype: str) -> np.float32:
    """What becomes of a number, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = volume_sample("a", volume_of(value, dtype), LABEL, "here", Path("x")).fields["image"]
    assert isinstance(image, np.ndarray) and image.dtype == np.float32
    return image[0, 1, 0, 1]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (16777217, "int64"),
        (-16777217, "int32"),
        (16777217, ">i8"),
        (16777219, "uint32"),
        (2**31 - 1, "int32"),
        (2**32 - 1, "uint32"),
        (2**63 - 1, "int64"),
        (2**64 - 1, "uint64"),
        (1e300, "float64"),
        (-1e39, "float64"),
        (3.5e38, ">f8"),
    ],
)
def test_a_number_that_float32_does_not_hold_is_refused(tmp_path: Path, value: float, dtype: str) -> None:
    np.save(tmp_path / "a_x.npy", volume_of(value, dtype))
    np.save(tmp_path / "a_y.npy", LABEL)
    said = f"the image holds {volume_of(value, dtype)[1, 0, 1]}, which float32 does not; scale it, or store float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert refusal(tmp_path, "unet3d") == f"{tmp_path / 'a_x.npy'} with a_y.npy: {said}"


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (16777216, "int64"),
        (16777218, "int64"),
        (-16777216, "int32"),
        (2**24 + 2, "uint32"),
        (2**31, "uint32"),
        (-(2**31), "int32"),
        (2**62, "int64"),
        (-(2**63), "int64"),
        (2**63, "uint64"),
        (65535, "uint16"),
        (-1024, "int16"),
        (3e38, "float64"),
        (float("inf"), "float64"),
        (65504, "float16"),
    ],
)
def test_a_number_that_it_holds_is_kept(value: float, dtype: str) -> None:
    found = intensity(value, dtype)
    assert found == np.float32(value)
    assert not float(value).is_integer() or value > 1e30 or int(found) == value


def test_fractions_are_rounded_to_the_nearest() -> None:
    assert intensity(0.1, "float64") == np.float32(0.1)
    assert intensity(1e-320, "float64") == 0
    assert np.isnan(intensity(float("nan"), "float64"))
