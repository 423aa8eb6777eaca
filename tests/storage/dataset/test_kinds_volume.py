"""Patches of volumes: cut, flipped and disturbed as the reference does."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchsuite.storage.create.volumes import volume_sample
from benchsuite.storage.dataset.kinds import VOLUME, Patch, decode_one, draw_patch, sample_rng
from benchsuite.storage.dataset.manifest import DatasetError, Sample
from benchsuite.storage.dataset.sample import fresh
from tests.storage.samples import VOLUME_PARAMS

SIZE = VOLUME_PARAMS["patch_size"]
DRAWS = 2000


def numbered(shape: tuple[int, int, int], foreground: tuple[int, int, int] | None = None) -> Sample:
    """A volume whose voxels all differ, with at most one foreground voxel."""
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(1, *shape)
    label = np.zeros((1, *shape), np.uint8)
    if foreground:
        label[(0, *foreground)] = 1
    return Sample("the/key", {"image": image, "label": label}, source="/the/file")


@pytest.fixture(scope="module")
def drawn() -> list[Patch]:
    sample = volume_sample(0, fresh, 0, {**VOLUME_PARAMS, "mean_bytes": 200_000})
    return [draw_patch(sample, SIZE, random.Random(number)) for number in range(DRAWS)]


class TestDecode:
    def test_is_slicing_flipping_and_disturbing_by_hand(self) -> None:
        sample = volume_sample(1, fresh, 0, VOLUME_PARAMS)
        kinds = set()
        for number in range(300):
            patch = draw_patch(sample, SIZE, random.Random(number))
            kinds.add((patch.flips, patch.brightness != 1, patch.noise_seed is not None))
            z, y, x = patch.corner
            image = sample.fields["image"][0, z : z + SIZE, y : y + SIZE, x : x + SIZE]
            label = sample.fields["label"][0, z : z + SIZE, y : y + SIZE, x : x + SIZE]
            for axis, flipped in enumerate(patch.flips):
                image = np.flip(image, axis) if flipped else image
                label = np.flip(label, axis) if flipped else label
            decoded = decode_one(VOLUME, sample, VOLUME_PARAMS, random.Random(number))
            assert np.array_equal(decoded["label"].numpy()[0], label)
            if patch.noise_seed is None:
                assert np.array_equal(decoded["image"].numpy()[0], image * np.float32(patch.brightness))
            else:
                noise = decoded["image"].numpy()[0] - image * np.float32(patch.brightness)
                assert 0 < noise.std() < 0.12
                assert abs(noise.mean()) < 0.02
        assert len(kinds) > 12

    def test_the_same_random_numbers_give_the_same_patch(self) -> None:
        sample = volume_sample(2, fresh, 0, VOLUME_PARAMS)
        for epoch in range(40):
            first, second = (
                decode_one(VOLUME, sample, VOLUME_PARAMS, sample_rng(1, epoch, sample.key)) for _ in range(2)
            )
            assert torch.equal(first["image"], second["image"]) and torch.equal(first["label"], second["label"])

    def test_other_random_numbers_give_other_patches(self) -> None:
        sample = volume_sample(2, fresh, 0, VOLUME_PARAMS)
        patches = {draw_patch(sample, SIZE, sample_rng(1, epoch, sample.key)) for epoch in range(40)}
        assert len(patches) > 35

    def test_the_volume_itself_is_left_as_it_is(self) -> None:
        sample = volume_sample(3, fresh, 0, VOLUME_PARAMS)
        before = sample.fields["image"].copy()
        for number in range(60):
            decode_one(VOLUME, sample, VOLUME_PARAMS, random.Random(number))
        assert np.array_equal(sample.fields["image"], before)

    def test_a_volume_of_the_patchs_size_is_taken_whole(self) -> None:
        patch = draw_patch(numbered((SIZE, SIZE, SIZE), (1, 2, 3)), SIZE, random.Random(0))
        assert patch.corner == (0, 0, 0)


class TestDraws:
    def test_four_patches_in_ten_are_centred_on_foreground(self) -> None:
        """One plane of the volume is foreground; of the other patches every 17th begins there by chance."""
        sample = numbered((24, 24, 24))
        sample.fields["label"][0, 12] = 1
        planes = [draw_patch(sample, SIZE, random.Random(number)).corner[0] for number in range(DRAWS)]
        assert planes.count(12 - SIZE // 2) / DRAWS == pytest.approx(0.4 + 0.6 / 17, abs=0.04)

    def test_patches_with_foreground(self) -> None:
        params = {**VOLUME_PARAMS, "mean_bytes": 400_000, "stdev_bytes": 1_000}
        sample = volume_sample(0, fresh, 0, params)
        with_foreground = 0
        for number in range(DRAWS):
            z, y, x = draw_patch(sample, SIZE, random.Random(number)).corner
            with_foreground += bool(sample.fields["label"][0, z : z + SIZE, y : y + SIZE, x : x + SIZE].any())
        assert with_foreground / DRAWS > 0.4

    @pytest.mark.parametrize("at", [0, 23])
    def test_a_patch_stays_inside_where_foreground_touches_the_border(self, at: int) -> None:
        sample = numbered((24, 24, 24))
        sample.fields["label"][0, at] = 1
        corners = [draw_patch(sample, SIZE, random.Random(number)).corner for number in range(400)]
        assert all(0 <= start <= 24 - SIZE for corner in corners for start in corner)
        border = 0 if at == 0 else 24 - SIZE
        assert sum(corner[0] == border for corner in corners) / 400 > 0.35

    def test_a_volume_without_foreground_is_cut_anywhere(self) -> None:
        sample = numbered((20, 21, 22))
        corners = [draw_patch(sample, SIZE, random.Random(number)).corner for number in range(300)]
        for axis, extent in enumerate((20, 21, 22)):
            assert {corner[axis] for corner in corners} == set(range(extent - SIZE + 1))

    def test_each_axis_is_flipped_in_a_third(self, drawn: list[Patch]) -> None:
        for axis in range(3):
            assert sum(patch.flips[axis] for patch in drawn) / DRAWS == pytest.approx(1 / 3, abs=0.04)
        assert len({patch.flips for patch in drawn}) == 8

    def test_a_tenth_is_brighter_or_darker_by_up_to_thirty_percent(self, drawn: list[Patch]) -> None:
        changed = [patch.brightness for patch in drawn if patch.brightness != 1]
        assert len(changed) / DRAWS == pytest.approx(0.1, abs=0.025)
        assert 0.7 <= min(changed) < 0.75 and 1.25 < max(changed) <= 1.3

    def test_a_tenth_is_noisy_each_in_its_own_way(self, drawn: list[Patch]) -> None:
        seeds = [patch.noise_seed for patch in drawn if patch.noise_seed is not None]
        assert len(seeds) / DRAWS == pytest.approx(0.1, abs=0.025)
        assert len(set(seeds)) == len(seeds)


class TestRefusals:
    @pytest.mark.parametrize("shape", [(7, 20, 20), (20, 7, 20), (20, 20, 7)])
    def test_a_volume_smaller_than_the_patch(self, shape: tuple[int, int, int]) -> None:
        with pytest.raises(DatasetError, match=r"/the/file: sample 'the/key': .* at least the patch size 8"):
            decode_one(VOLUME, numbered(shape), VOLUME_PARAMS, random.Random(0))

    def test_image_and_label_of_unequal_shapes(self) -> None:
        sample = numbered((20, 20, 20))
        fields = {**sample.fields, "label": np.zeros((1, 20, 20, 21), np.uint8)}
        with pytest.raises(DatasetError, match=r"\(1, 20, 20, 20\) and label \(1, 20, 20, 21\)"):
            decode_one(VOLUME, replace(sample, fields=fields), VOLUME_PARAMS, random.Random(0))

    def test_a_volume_without_its_channel_axis(self) -> None:
        fields = {"image": np.zeros((20, 20, 20), np.float32), "label": np.zeros((20, 20, 20), np.uint8)}
        with pytest.raises(DatasetError, match=r"needed: the same \(1, D, H, W\)"):
            decode_one(VOLUME, Sample("k", fields), VOLUME_PARAMS, random.Random(0))
