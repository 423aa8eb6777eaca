"""Format `webdataset`: the conformance suite, and what is its own."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.convert import convert_dataset, in_order
from storage.format import Dataset, DatasetError, Lane, open_dataset
from storage.tar import read
from tests.storage.conformance import FormatConformance
from tests.storage.samples import jpeg


def rewrite(shard: Path, members: list[tuple[str, bytes]]) -> None:
    """Replace a shard by one with these members."""
    with tarfile.open(shard, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def members(shard: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(shard) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


class TestTar(FormatConformance):
    name = "webdataset"
    options = {"shard_samples": 3}  # noqa: RUF012

    def test_shards_hold_what_was_asked_and_the_last_one_the_rest(self, dataset: Dataset) -> None:
        assert [info.num_samples for info in dataset.manifest.files] == [3] * 8 + [2]
        assert [info.bytes for info in dataset.manifest.files] == [path.stat().st_size for path in dataset.data_files()]

    def test_any_tar_reader_can_read_them(self, dataset: Dataset) -> None:
        read = [pair for path in dataset.data_files() for pair in members(path)]
        assert read == [
            pair for number in range(26) for pair in ((f"{number:04d}.cls", b"0"), (f"{number:04d}.jpg", jpeg(number)))
        ]

    def test_the_same_samples_make_the_same_shards(self, dataset: Dataset, tmp_path: Path) -> None:
        again = convert_dataset(tmp_path / "flat", tmp_path / "again", "resnet50", "tiny", self.name, self.options)
        assert [info.digest for info in again.files] == [info.digest for info in dataset.manifest.files]

    def test_the_unluckiest_reader_gets_the_fewest_and_shortest_shards(self, form, dataset: Dataset) -> None:
        assert form.smallest_lane(dataset.manifest, 4) == 2 + 3

    def test_samples_of_a_shard_are_mixed_anew_in_every_epoch_for_every_seed(self, form, tmp_path: Path) -> None:
        flat = tmp_path / "flat"
        flat.mkdir()
        for number in range(20):
            (flat / f"{number:04d}.jpg").write_bytes(jpeg(number))
        convert_dataset(flat, tmp_path / "one", "resnet50", "tiny", self.name)
        dataset = open_dataset(tmp_path / "one")
        assert len(dataset.manifest.files) == 1
        orders = {
            tuple(sample.index for sample in form.read(dataset, Lane(0, 1, epoch, seed, True, 100)))
            for epoch in range(3)
            for seed in range(3)
        }
        assert len(orders) == 9

    def test_a_buffer_of_one_keeps_samples_of_a_shard_together(self, form, dataset: Dataset) -> None:
        rows = [sample.index for sample in form.read(dataset, Lane(0, 1, 0, 0, True, 1))]
        assert rows != sorted(rows)
        blocks = sorted(rows, key=lambda row: rows.index(row - row % 3))
        assert rows == blocks


@pytest.fixture
def shard(small: Callable[[str], Dataset]) -> tuple[Dataset, Path]:
    """A dataset and its second shard, which holds `cat/d_v1` and `dog/a`."""
    dataset = small("webdataset")
    return dataset, dataset.data_files()[1]


def read_error(dataset: Dataset) -> str:
    """The one line that reading the dataset, without verifying it first, ends with."""
    with pytest.raises(DatasetError) as raised:
        list(in_order(dataset))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_shard_cut_at_a_block_boundary_is_short(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2].offset
    with path.open("r+b") as file:
        file.truncate(third)
    assert read_error(dataset) == f"{path}: 1 samples short of the 2 in the index"


def test_a_shard_cut_inside_a_member_is_corrupt(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    with path.open("r+b") as file:
        file.truncate(700)
    assert str(path) in read_error(dataset)


def test_an_empty_shard_is_named(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    path.write_bytes(b"")
    assert str(path) in read_error(dataset)


def test_swapped_shards_are_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    first = dataset.data_files()[0]
    content = first.read_bytes()
    shutil.copy(path, first)
    path.write_bytes(content)
    assert "is not the one that the index names" in read_error(dataset)


def test_a_foreign_member_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(path, [("../evil.cls", b"0"), ("../evil.jpg", jpeg(9)), *members(path)])
    assert read_error(dataset) == f"{path}: member '../evil' is not the one that the index names"
    assert not list(dataset.folder.parent.glob("evil*"))


def test_a_surplus_member_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(path, [*members(path), ("more.cls", b"0"), ("more.jpg", jpeg(9))])
    assert read_error(dataset) == f"{path}: member 'more' is not the one that the index names"


def test_a_sample_without_its_image_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(path, [pair for pair in members(path) if pair[0] != "dog/a.jpg"])
    assert read_error(dataset) == f"{path}: sample 'dog/a' lacks .jpg"


def test_a_member_that_stands_twice_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    cls, *rest = members(path)
    rewrite(path, [cls, cls, *rest])
    assert str(path) in read_error(dataset)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_whatever_is_damaged_reading_ends_in_one_line_that_names_the_shard(
    shard: tuple[Dataset, Path], mask: int
) -> None:
    """Bytes flipped in headers, one after the other; some flips (owner, time stamps) rightly do not matter."""
    dataset, path = shard
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        starts = [info.offset for info in tar]
    noticed = 0
    for offset in [start + byte for start in starts for byte in range(0, 512, 3)]:
        damaged = bytearray(whole)
        damaged[offset] ^= mask
        path.write_bytes(damaged)
        try:
            list(in_order(dataset))
        except DatasetError as error:
            noticed += 1
            assert str(path) in str(error) and "\n" not in str(error), offset
    assert noticed > 100


def test_a_shard_without_samples_is_refused(tmp_path: Path, class_folder: Path) -> None:
    with pytest.raises(DatasetError, match="shard_samples"):
        convert_dataset(class_folder, tmp_path / "set", "resnet50", "tiny", "webdataset", {"shard_samples": 0})
    assert not (tmp_path / "set").exists()


def test_a_manifest_that_counts_a_shard_wrong_is_refused(small: Callable[[str], Dataset]) -> None:
    dataset = small("webdataset")
    dataset.manifest.files[0].num_samples = 6
    assert dataset.data_files()[0].name in read_error(dataset)
    dataset.manifest.files[0].num_samples = None
    assert dataset.data_files()[0].name in read_error(dataset)
    assert open_dataset(dataset.folder).manifest.files[0].num_samples == 2


def test_a_manifest_that_counts_the_shards_before_too_high_is_refused(small: Callable[[str], Dataset]) -> None:
    """A reader of the last shard alone must not run off the end of the index."""
    dataset = small("webdataset")
    dataset.manifest.files[0].num_samples = 100
    with pytest.raises(DatasetError, match="shard-000002"):
        list(read(dataset, Lane(2, 3, 0, 0, False, 1)))
