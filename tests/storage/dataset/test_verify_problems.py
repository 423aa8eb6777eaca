"""All that is wrong with a dataset is told in one go."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.dataset.manifest import Dataset, DatasetError
from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.dataset.verify import verify_dataset
from tests.storage.conftest import Made
from tests.storage.dataset.test_verify import complaint, edit_index, every_format
from tests.storage.samples import flip


class TestSeveralProblems:
    """All of them are found, each once."""

    def told(self, folder: Path) -> tuple[str, ...]:
        with pytest.raises(Damage) as raised:
            verify_dataset(folder)
        assert str(raised.value) == raised.value.told[0]
        assert len(raised.value.told) == raised.value.count
        return raised.value.told

    def test_of_samples_that_are_files(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        gone, changed, cut = (dataset.data_files()[row] for row in (0, 2, 5))
        gone.unlink()
        flip(changed, changed.stat().st_size // 2)
        os.truncate(cut, 100)
        first, second, third = self.told(dataset.folder)
        assert first == f"{gone}: No such file or directory"
        assert second == f"{changed}: sample {dataset.key(2)!r}: its checksum is not the index's"
        assert third.startswith(f"{cut}: ") and "truncated or changed" in third

    def test_of_shards(self, small: Callable[[str], Dataset]) -> None:
        """What lies in a damaged one is not told again."""
        dataset = small("webdataset")
        first, second, third = dataset.data_files()[:3]
        flip(first, 700)
        third.unlink()
        assert self.told(dataset.folder) == (
            f"{first}: its checksum is not the manifest's",
            f"{third}: missing; the manifest names it",
        )
        edit_index(dataset.folder, "digest", 3, b"0" * 32)
        assert self.told(dataset.folder)[2] == f"{second}: sample {dataset.key(3)!r}: its checksum is not the index's"

    @every_format
    def test_of_the_index(self, small: Callable[[str], Dataset], name: str) -> None:
        """A sample that is not as it should be hides none of those after it."""
        folder = small(name).folder
        for row in (1, 4, 5):
            edit_index(folder, "digest", row, b"0" * 32)
        told = self.told(folder)
        assert len(told) == 3 and all("its checksum is not the index's" in line for line in told)

    def test_of_samples_that_cannot_be_read(self, mine: Made) -> None:
        folder = mine("hdf5", "volume").folder
        for row in (0, 3):
            edit_index(folder, "key", row, f"n{row}".encode())
        told = self.told(folder)
        assert len(told) == 2 and "sample 'n0'" in told[0] and "sample 'n3'" in told[1], told

    def test_a_pair_of_files_is_told_once(self, mine: Made) -> None:
        dataset = mine("files", "volume")
        labels = sorted(dataset.folder.rglob("*_y.npy"))
        for path in labels[:2]:
            flip(path, path.stat().st_size - 1)
        assert self.told(dataset.folder) == tuple(f"{path}: its checksum is not the manifest's" for path in labels[:2])

    def test_a_damaged_container_is_not_read(self, mine: Made) -> None:
        """A library that maps it might end the process."""
        folder = mine("lmdb", "image").folder
        flip(folder / "data.mdb", 5000)
        assert complaint(folder) == f"{folder / 'data.mdb'}: its checksum is not the manifest's"

    def test_an_index_file_that_all_need(self, mine: Made) -> None:
        folder = mine("tokens", "tokens").folder
        (index,) = folder.glob("*.idx")
        flip(index, index.stat().st_size - 1)
        assert complaint(folder) == f"{index}: its checksum is not the manifest's"

    def test_more_than_are_told_are_counted(self, tmp_path: Path) -> None:
        generate_dataset(tmp_path / "set", Wanted("resnet50", "tiny", "files"), 33, seed=0)
        for path in sorted((tmp_path / "set").rglob("*.jpg"))[:25]:
            path.unlink()
        with pytest.raises(Damage) as raised:
            verify_dataset(tmp_path / "set")
        assert (len(raised.value.told), raised.value.count) == (20, 25)


class TestConverted:
    """A dataset that is converted: once one sample cannot be read, all are told, and nothing is written."""

    def test_every_damaged_image(self, small: Callable[[str], Dataset], tmp_path: Path) -> None:
        dataset = small("files")
        gone, cut = dataset.data_files()[1], dataset.data_files()[4]
        gone.unlink()
        os.truncate(cut, 100)
        with pytest.raises(Damage) as raised:
            convert_dataset(dataset.folder, tmp_path / "new", Wanted("resnet50", "tiny", "hdf5"))
        first, second = raised.value.told
        assert first == f"{gone}: No such file or directory" and second.startswith(f"{cut}: ")
        assert not (tmp_path / "new").exists()

    def test_one_is_told_as_it_is(self, small: Callable[[str], Dataset], tmp_path: Path) -> None:
        dataset = small("files")
        dataset.data_files()[1].unlink()
        with pytest.raises(DatasetError, match=r"No such file or directory$") as raised:
            convert_dataset(dataset.folder, tmp_path / "new", Wanted("resnet50", "tiny", "hdf5"))
        assert not isinstance(raised.value, Damage)
