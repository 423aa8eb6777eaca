"""Format `mds`: the conformance suite, shards that the library wrote, the library as a reader of ours, and damage."""

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, Sample
from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats import mds
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import facts, flip, some_samples, store

WRITTEN = Path(__file__).parents[2] / "fixtures" / "mds"
KINDS = ["image", "mlm", "tokens", "volume"]
needs_the_library = pytest.mark.skipif(
    find_spec("streaming") is None, reason="mosaicml-streaming is not installed; it needs torchvision and numpy < 2.2"
)


class TestMds(FormatConformance, ImageConformance):
    name = "mds"


def samples_of(path: Path, kind: str) -> list[Sample]:
    """The samples of a shard with the columns of ours."""
    with LocalFile(path) as file:
        places, columns = mds.head(file)
    content = np.frombuffer(path.read_bytes(), np.uint8)
    found = (mds._fields(kind, content[start:end], columns, "") for start, end in pairwise(places))
    return [Sample(key, fields) for key, fields in found]


class TestShardsOfTheLibrary:
    @pytest.mark.parametrize("kind", KINDS)
    def test_ours_are_the_same_to_the_byte(self, tmp_path: Path, kind: str) -> None:
        found = samples_of(WRITTEN / kind / "shard.00000.mds", kind)
        list(mds.write(tmp_path, iter(found), len(found)))
        for path in tmp_path.iterdir():
            assert path.read_bytes() == (WRITTEN / kind / path.name).read_bytes(), path.name

    @pytest.mark.parametrize("kind", ["mlm", "tokens"])
    def test_they_hold_what_was_written(self, kind: str) -> None:
        found = samples_of(WRITTEN / kind / "shard.00000.mds", kind)
        assert [facts(sample) for sample in found] == [facts(each) for each in some_samples(len(found), kind)]

    def test_volumes_hold_what_was_written(self) -> None:
        found = samples_of(WRITTEN / "volume" / "shard.00000.mds", "volume")
        for sample, shape in zip(found, [(1, 3, 4, 5), (1, 2, 3, 300)], strict=True):
            numbers = np.arange(np.prod(shape)).reshape(shape)
            np.testing.assert_array_equal(sample.fields["image"], numbers.astype(np.float32))
            np.testing.assert_array_equal(sample.fields["label"], (numbers % 3).astype(np.uint8))

    def test_arrays_of_any_dtype(self) -> None:
        path = WRITTEN / "dynamic" / "shard.00000.mds"
        with LocalFile(path) as file:
            places, columns = mds.head(file)
        content, seen = np.frombuffer(path.read_bytes(), np.uint8), set()
        for start, end in pairwise(places):
            value = mds.values_of(content[start:end], columns, "")["any"]
            array = mds.decoded(value, columns[0].encoding)
            assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
            seen.add(array.dtype.name)
        assert seen == set(mds._NUMBERS.values())


@needs_the_library
class TestTheLibraryReadsOurs:
    @pytest.mark.parametrize("kind", KINDS)
    def test_sample_by_sample(self, made: Made, kind: str) -> None:
        from streaming import LocalDataset

        found = LocalDataset(str(made("mds", kind).folder))
        assert len(found) == 26
        for number, sample in enumerate(some_samples(26, kind)):
            row: dict[str, Any] = found[number]
            assert row.pop("key") == sample.key
            if kind == "image":
                assert (row["image"].size, row["label"]) == ((32, 24), int(bytes(sample.fields["label"])))
                continue
            for name, value in sample.fields.items():
                assert np.asarray(row[name]).dtype == value.dtype
                np.testing.assert_array_equal(row[name], value)

    def test_a_shard_that_is_shorter_than_was_expected(self, tmp_path: Path) -> None:
        from streaming import LocalDataset

        dataset = store(some_samples(5, "tokens"), "tokens", tmp_path / "set", "mds", {"shard_samples": 4})
        found = LocalDataset(str(dataset.folder))
        np.testing.assert_array_equal(found[4]["tokens"], some_samples(5, "tokens")[4].fields["tokens"])


def test_the_index_lists_the_shards(made: Made) -> None:
    dataset = made("mds", "tokens")
    told = json.loads((dataset.folder / "index.json").read_text())
    files = [info for info in dataset.manifest.files if info.num_samples]
    assert [(each["raw_data"]["basename"], each["raw_data"]["bytes"], each["samples"]) for each in told["shards"]] == [
        (info.path, info.bytes, info.num_samples) for info in files
    ]
    assert all(info.digest.startswith("blake3-from-") for info in files)


def test_a_shard_beyond_its_places_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "MAX_SHARD_BYTES", 2000)
    with pytest.raises(DatasetError, match=r"shard.00000.mds: .* give a smaller -o shard_samples=N"):
        store(some_samples(6), "image", tmp_path / "set", "mds", {"shard_samples": 3})
    assert not (tmp_path / "set").exists()


class TestDamage:
    """Told while reading, without verifying first."""

    @pytest.fixture
    def shard(self, mine: Made) -> tuple[Dataset, Path]:
        dataset = mine("mds", "mlm")
        return dataset, dataset.folder / "shard.00001.mds"

    @pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
    def test_a_flipped_byte_in_the_head(self, shard: tuple[Dataset, Path], mask: int) -> None:
        """It is told, or names and settings of columns that nothing is read by are others."""
        dataset, path = shard
        whole = [facts(sample) for sample in in_order(dataset)]
        end = int.from_bytes(path.read_bytes()[4:8], "little")
        for offset in range(end):
            flip(path, offset, mask)
            try:
                found = [facts(sample) for sample in in_order(dataset)]
            except DatasetError as error:
                assert str(path) in str(error) and "\n" not in str(error)
            else:
                assert offset >= 16 and len(found) == len(whole), offset
            flip(path, offset, mask)
        verify_dataset(dataset.folder)

    @pytest.mark.parametrize("kept", [3, 10, 100, -1])
    def test_a_shard_that_is_cut(self, shard: tuple[Dataset, Path], kept: int) -> None:
        dataset, path = shard
        path.write_bytes(path.read_bytes()[:kept])
        for info in dataset.manifest.files:
            if info.path == path.name:
                info.bytes = path.stat().st_size
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: ")

    def test_sizes_that_are_not_the_samples(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        flip(path, int.from_bytes(path.read_bytes()[4:8], "little"))
        told = one_line(lambda: list(in_order(dataset)))
        assert told.startswith(f"{path}: sample 0: its values' sizes are not those of its ")
