"""Photographs that cost what ImageNet's cost (decode time is measured by a benchmark, not here)."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

from benchsuite.storage.create.photos import SIZES, image_sample, photograph

COUNT = 160


@pytest.fixture(scope="module")
def photographs() -> list[bytes]:
    return [photograph(0, index) for index in range(COUNT)]


def luma(image: bytes) -> npt.NDArray[np.float64]:
    pixels = simplejpeg.decode_jpeg(image, "RGB").astype(np.float64)
    weighted: npt.NDArray[np.float64] = pixels @ np.array([0.299, 0.587, 0.114])
    return weighted


def spectral_slope(pixels: npt.NDArray[np.float64]) -> float:
    """Slope of log amplitude over log frequency, averaged over directions, from 4 cycles an image to 0.25 a pixel."""
    side = min(pixels.shape)
    square = pixels[:side, :side] - pixels[:side, :side].mean()
    window = np.hanning(side)[:, None] * np.hanning(side)[None, :]
    amplitude = np.abs(np.fft.fft2(square * window))
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :])
    edges = np.geomspace(4 / side, 0.25, 12)
    band = np.digitize(frequency, edges)
    means = [amplitude[band == number].mean() for number in range(1, len(edges))]
    return float(np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(means), 1)[0])


def test_a_photograph_is_a_function_of_seed_and_index() -> None:
    assert photograph(7, 3) == photograph(7, 3)
    assert len({photograph(seed, index) for seed in range(3) for index in range(3)}) == 9


def test_a_photograph_does_not_depend_on_the_processor() -> None:
    """Rounding that differs with the vector instructions at hand would give a seed another dataset on another host."""
    code = (
        "import hashlib; from benchsuite.storage.create.photos import photograph;"
        "print(hashlib.sha256(b''.join(photograph(0, index) for index in range(6))).hexdigest())"
    )
    unvectorised = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR AVX2 FMA3 AVX512F AVX512_SKX"}
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **unvectorised},
        check=True,
        capture_output=True,
        text=True,
    )
    here = hashlib.sha256(b"".join(photograph(0, index) for index in range(6))).hexdigest()
    assert other.stdout.strip() == here


def test_they_are_as_large_as_those_of_imagenet(photographs: list[bytes]) -> None:
    sizes = [len(image) for image in photographs]
    assert 95_000 < np.mean(sizes) < 125_000
    assert np.std(sizes) > 20_000


def test_they_have_the_dimensions_of_those_of_imagenet(photographs: list[bytes]) -> None:
    headers = [simplejpeg.decode_jpeg_header(image) for image in photographs]
    assert {(width, height) for height, width, *_ in headers} == set(SIZES)
    assert np.mean([height * width for height, width, *_ in headers]) == pytest.approx(190_000, rel=0.08)
    assert {space for *_, space, _ in headers} == {"YCbCr"}
    subsampling = Counter(header[3] for header in headers)
    assert set(subsampling) == {"444", "420"}
    assert subsampling["420"] / COUNT == pytest.approx(0.25, abs=0.08)


def test_they_use_the_range_of_grey(photographs: list[bytes]) -> None:
    spreads = [luma(image).std() for image in photographs[:40]]
    assert min(spreads) > 15 and max(spreads) < 80
    assert 35 < np.mean(spreads) < 60


def test_their_spectra_fall_like_those_of_natural_images(photographs: list[bytes]) -> None:
    slopes = [spectral_slope(luma(image)) for image in photographs[:40]]
    assert min(slopes) > -2.4 and max(slopes) < -0.6
    assert -1.7 < np.mean(slopes) < -1.1


def test_the_measure_of_spectra_tells_noise() -> None:
    noise = np.random.default_rng(0).normal(size=(300, 400))
    assert abs(spectral_slope(noise)) < 0.1


def test_labels_cover_the_classes_and_stand_in_the_key() -> None:
    samples = [image_sample(1, index, 4) for index in range(40)]
    labels = [int(sample.fields["label"]) for sample in samples]
    assert set(labels) == {0, 1, 2, 3}
    assert [sample.key for sample in samples] == [f"class{label:04d}/{index:08d}" for index, label in enumerate(labels)]
    assert samples[5].fields["image"] == photograph(1, 5)


@pytest.mark.skipif("BENCHSUITE_IMAGENET_SAMPLE" not in os.environ, reason="BENCHSUITE_IMAGENET_SAMPLE names no folder")
def test_they_are_as_dense_as_a_sample_of_imagenet(photographs: list[bytes]) -> None:
    real = [path.read_bytes() for path in Path(os.environ["BENCHSUITE_IMAGENET_SAMPLE"]).glob("*.JPEG")]

    def density(images: list[bytes]) -> float:
        pixels = [np.prod(simplejpeg.decode_jpeg_header(image)[:2]) for image in images]
        return sum(map(len, images)) / float(sum(pixels))

    assert density(photographs) == pytest.approx(density(real), rel=0.1)
    assert np.mean([len(image) for image in photographs]) == pytest.approx(np.mean([*map(len, real)]), rel=0.1)
