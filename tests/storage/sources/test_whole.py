"""Of users' data, all that is damaged is told at once, and nothing after it is handed on."""

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset
from benchsuite.storage.dataset.problems import MAX_TOLD, Damage
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.sources import open_source
from benchsuite.storage.sources.source import whole
from tests.storage.samples import VOLUME_PARAMS, jpeg
from tests.storage.sources.test_sequences import pair


def makers(*made: Sample | str) -> list[Callable[[], Sample]]:
    """Samples, and damage in words."""

    def make(one: Sample | str) -> Sample:
        if isinstance(one, str):
            raise DatasetError(one)
        return one

    return [lambda one=one: make(one) for one in made]  # type: ignore[misc]


GOOD = [Sample(str(number), {}) for number in range(3)]


class TestWhole:
    def test_what_is_whole_passes(self) -> None:
        assert list(whole(makers(*GOOD))) == GOOD

    def test_after_the_first_damage_nothing_is_handed_on(self) -> None:
        seen = []
        with pytest.raises(Damage) as raised:
            for sample in whole(makers(GOOD[0], "one", GOOD[1], "two")):
                seen.append(sample)
        assert seen == GOOD[:1]
        assert (raised.value.told, raised.value.count, str(raised.value)) == (("one", "two"), 2, "one")

    def test_one_is_told_as_it_is(self) -> None:
        with pytest.raises(DatasetError, match=r"^one$") as raised:
            list(whole(makers("one", *GOOD)))
        assert not isinstance(raised.value, Damage)

    def test_what_ends_the_source_is_told_last(self) -> None:
        def torn() -> Iterator[Callable[[], Sample]]:
            yield from makers(GOOD[0], "one")
            raise DatasetError("torn")

        with pytest.raises(Damage) as raised:
            list(whole(torn()))
        assert raised.value.told == ("one", "torn")

    def test_many_are_counted(self) -> None:
        with pytest.raises(Damage) as raised:
            list(whole(makers(GOOD[0], *map(str, range(50)))))
        assert raised.value.told == tuple(map(str, range(MAX_TOLD))) and raised.value.count == 50

    def test_where_none_is_whole_the_rest_is_not_looked_at(self) -> None:
        """A terabyte of something else is not read to its end to say so."""
        looked_at = []

        def more() -> Iterator[Callable[[], Sample]]:
            for number in range(1000):
                looked_at.append(number)
                yield from makers(str(number))

        with pytest.raises(Damage) as raised:
            list(whole(more()))
        assert len(looked_at) == MAX_TOLD - 1
        assert raised.value.told[-1] == "none so far is whole, and the rest was not looked at"


def test_every_image_of_a_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(6):
            content = b"none" if number in (1, 4) else jpeg(number)
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(Damage) as raised:
        convert_dataset(tmp_path / "a.tar", tmp_path / "new", Wanted("resnet50", "tiny", "hdf5"))
    assert len(raised.value.told) == 2
    assert "sample '1'" in raised.value.told[0] and "sample '4'" in raised.value.told[1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_every_volume(tmp_path: Path) -> None:
    for number in range(4):
        volume = np.zeros((9, 9, 9), np.float32)
        np.save(tmp_path / f"{number}_x.npy", volume)
        np.save(tmp_path / f"{number}_y.npy", volume[: 9 - number % 2].astype(np.uint8))
    with pytest.raises(Damage) as raised:
        list(open_source(tmp_path, "volume", VOLUME_PARAMS).samples)
    assert [line.partition(":")[0] for line in raised.value.told] == [
        f"{tmp_path / f'{number}_x.npy'} with {number}_y.npy" for number in (1, 3)
    ]


def test_every_volume_of_an_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(4):
            volume = np.zeros((9, 9, 9), np.float32)
            group = file.create_group(str(number))
            group["image"], group["label"] = volume, volume[: 9 - number % 2].astype(np.uint8)
    with pytest.raises(Damage) as raised:
        list(open_source(tmp_path / "a.h5", "volume", VOLUME_PARAMS).samples)
    first, second = raised.value.told
    assert "group '1'" in first and "group '3'" in second


def test_every_window_of_a_stream(tmp_path: Path) -> None:
    """Windows of 4 ids, of which neighbours share one: an id that is too large stands in windows 1 and 3."""
    ids = np.zeros(17, np.int32)
    ids[[6, 14]] = 99
    path = pair(tmp_path / "ids", ids, "i4").with_suffix(".bin")
    with pytest.raises(Damage) as raised:
        list(open_source(path, "tokens", {"seq_len": 4, "vocab_size": 50}).samples)
    assert raised.value.told == tuple(
        f"{path}: window {number} (from token {4 * number}): tokens holds 99, needed: 0..49 (vocab_size 50)"
        for number in (1, 3)
    )


def test_every_sample_of_bert(tmp_path: Path) -> None:
    params = {"seq_len": 8, "max_predictions": 2, "vocab_size": 50}
    lengths = dict.fromkeys(("input_ids", "segment_ids"), 8) | dict.fromkeys(
        ("masked_lm_positions", "masked_lm_ids"), 2
    )
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, length in lengths.items():
            values = np.zeros((5, length), np.int32)
            values[[1, 4], 0] = 50 if name == "input_ids" else 0
            file[name] = values
        file["next_sentence_labels"] = np.zeros(5, np.int8)
    with pytest.raises(Damage) as raised:
        list(open_source(tmp_path / "a.hdf5", "mlm", params).samples)
    first, second = raised.value.told
    assert "sample 1: input_ids holds 50" in first and "sample 4: input_ids holds 50" in second
