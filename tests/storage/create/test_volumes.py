"""Generated volumes: sizes as the reference's distribution has them, and something to segment."""

import numpy as np
import pytest

from benchsuite.storage.create.volumes import volume_bytes, volume_sample, volume_shape
from benchsuite.storage.dataset.sample import fresh
from benchsuite.workloads.facts import FACTS
from tests.storage.samples import VOLUME_PARAMS

REFERENCE = FACTS["unet3d"].variants["reference"].sample
MB = 1_000_000


class TestSizes:
    @pytest.fixture(scope="class")
    @staticmethod
    def shapes() -> list[tuple[int, int, int]]:
        return [volume_shape(0, index, REFERENCE) for index in range(4000)]

    def test_mean_and_spread_are_those_of_the_reference(self, shapes: list[tuple[int, int, int]]) -> None:
        sizes = [volume_bytes(shape) for shape in shapes]
        assert np.mean(sizes) == pytest.approx(146.6 * MB, rel=0.03)
        assert np.std(sizes) == pytest.approx(68.3 * MB, rel=0.06)

    def test_they_lean_to_the_small_side(self, shapes: list[tuple[int, int, int]]) -> None:
        sizes = np.array([volume_bytes(shape) for shape in shapes])
        assert np.median(sizes) < np.mean(sizes)
        assert np.mean((sizes - sizes.mean()) ** 3) / sizes.std() ** 3 > 0.5

    def test_none_is_smaller_than_a_patch(self, shapes: list[tuple[int, int, int]]) -> None:
        assert min(min(shape) for shape in shapes) >= REFERENCE["patch_size"]
        tight = {"patch_size": 50, "mean_bytes": 1000, "stdev_bytes": 500}
        assert volume_shape(0, 0, tight) == (50, 50, 50)

    def test_they_are_flat_or_cubes(self, shapes: list[tuple[int, int, int]]) -> None:
        wide = [shape for shape in shapes if shape[0] > REFERENCE["patch_size"]]
        flatness = [depth / width for depth, _, width in wide]
        assert min(flatness) > 0.55 and max(flatness) < 1.05
        assert all(height == width for _, height, width in wide)

    def test_another_seed_has_other_sizes(self) -> None:
        first, second = ([volume_shape(seed, index, REFERENCE) for index in range(9)] for seed in (0, 1))
        assert first != second


class TestContent:
    @pytest.mark.parametrize("index", range(6))
    def test_both_kidneys_and_a_tumour_in_a_body(self, index: int) -> None:
        params = {"patch_size": 32, "mean_bytes": 1_500_000, "stdev_bytes": 300_000}
        sample = volume_sample(index, fresh, 0, params)
        image, label = sample.fields["image"], sample.fields["label"]
        assert image.dtype == np.float32 and label.dtype == np.uint8
        assert image.shape == label.shape == (1, *volume_shape(0, index, params))
        assert set(np.unique(label)) == {0, 1, 2}
        assert 0.001 < np.mean(label != 0) < 0.1
        assert image[label == 1].mean() > image[label == 0].mean() + 0.5
        assert np.all(np.isfinite(image))
        width = label.shape[3]
        kidneys = np.flatnonzero((label == 1).any(axis=(0, 1, 2)))
        assert kidneys.min() < width / 2 < kidneys.max()

    def test_foreground_is_there_in_the_smallest_volume(self) -> None:
        for index in range(20):
            assert volume_sample(index, fresh, 0, VOLUME_PARAMS).fields["label"].any()

    def test_it_depends_on_seed_and_index_alone(self) -> None:
        def made(seed: int, index: int) -> bytes:
            return volume_sample(index, fresh, seed, VOLUME_PARAMS).fields["image"].tobytes()

        assert made(3, 4) == made(3, 4)
        assert len({made(seed, index) for seed in range(3) for index in range(3)}) == 9

    def test_memory_used_before_leaves_no_trace(self) -> None:
        memory = np.full(10**6, 0xAB, np.uint8)
        for index in range(4):
            clean = volume_sample(index, fresh, 0, VOLUME_PARAMS)
            again = volume_sample(index, lambda name, size: memory, 0, VOLUME_PARAMS)
            for name in ("image", "label"):
                assert np.array_equal(clean.fields[name], again.fields[name])

    def test_it_compresses_as_scans_do(self) -> None:
        """Air is constant and tissue is not."""
        image = volume_sample(0, fresh, 0, {**VOLUME_PARAMS, "mean_bytes": 400_000}).fields["image"]
        air = np.mean(image == image.flat[0])
        assert 0.2 < air < 0.7
