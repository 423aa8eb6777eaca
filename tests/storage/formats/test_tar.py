"""Format `webdataset`: the conformance suite, and what is its own."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, open_dataset
from benchsuite.storage.dataset.sample import Recycled
from benchsuite.storage.dataset.shards import shards
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats.tar import WEBDATASET, read
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import jpeg, some_samples


def rewrite(
    dataset: Dataset, shard: Path, members: list[tuple[str, bytes]], link: tarfile.TarInfo | None = None
) -> None:
    """Replace a shard by one with these members, its size as the opened manifest says."""
    with tarfile.open(shard, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if link:
            tar.addfile(link)
    agree(dataset, shard)


def agree(dataset: Dataset, shard: Path) -> None:
    """Have the opened manifest agree with a shard's size."""
    info = next(info for info in dataset.manifest.files if info.path == shard.name)
    info.bytes = shard.stat().st_size


def members(shard: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(shard) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


def tars(dataset: Dataset) -> list[Path]:
    """The shards, without the indices beside them."""
    return [path for path in dataset.data_files() if path.suffix == ".tar"]


class TestTar(FormatConformance, ImageConformance):
    name = "webdataset"


class TestShards:
    def test_hold_what_was_asked_and_the_last_one_the_rest(self, made: Made) -> None:
        dataset = made("webdataset", "image")
        assert [info.num_samples for info in shards(dataset.manifest)] == [3] * 8 + [2]
        assert [info.bytes for info in dataset.manifest.files] == [path.stat().st_size for path in dataset.data_files()]

    def test_any_tar_reader_reads_images(self, made: Made) -> None:
        dataset = made("webdataset", "image")
        assert [pair for path in tars(dataset) for pair in members(path)] == [
            pair
            for sample in some_samples(26)
            for pair in ((f"{sample.key}.cls", sample.fields["label"]), (f"{sample.key}.jpg", sample.fields["image"]))
        ]

    def test_any_tar_reader_reads_volumes(self, made: Made) -> None:
        dataset = made("webdataset", "volume")
        stored = dict(pair for path in tars(dataset) for pair in members(path))
        assert len(stored) == 2 * 26
        for sample in some_samples(26, "volume"):
            for name, values in sample.fields.items():
                loaded = np.load(io.BytesIO(stored[f"{sample.key}.{name}.npy"]), allow_pickle=False)
                assert loaded.dtype == values.dtype
                assert np.array_equal(loaded, values)

    @pytest.mark.parametrize("kind", ["mlm", "tokens"])
    def test_any_tar_reader_reads_sequences(self, made: Made, kind: str) -> None:
        dataset = made("webdataset", kind)
        stored = dict(pair for path in tars(dataset) for pair in members(path))
        assert len(stored) == 26
        for sample in some_samples(26, kind):
            loaded = np.load(io.BytesIO(stored[f"{sample.key}.npy"]), allow_pickle=False)
            for name, values in sample.fields.items():
                assert np.array_equal(loaded[name] if kind == "mlm" else loaded, values)

    @pytest.mark.parametrize("kind", ["image", "volume", "mlm"])
    def test_the_same_samples_make_the_same_shards(self, made: Made, tmp_path: Path, kind: str) -> None:
        dataset = made("webdataset", kind)
        again = convert_dataset(
            dataset.folder,
            tmp_path / "again",
            Wanted("any", "tiny", "webdataset", kind=kind, options={"shard_samples": 3}),
        )
        assert [info.digest for info in again.files] == [info.digest for info in dataset.manifest.files]

    def test_the_unluckiest_reader_gets_the_fewest_and_shortest_ones(self, made: Made) -> None:
        assert WEBDATASET.smallest_lane(made("webdataset", "image").manifest, 4) == 2 + 3

    def test_samples_of_one_are_mixed_anew_in_every_epoch_for_every_seed(self, made: Made) -> None:
        dataset = made("webdataset", "image", {"shard_samples": 128}, 20)
        assert len(shards(dataset.manifest)) == 1
        orders = {
            tuple(sample.index for sample in read(dataset, ReaderShare(0, 1, epoch, seed, True, 100)))
            for epoch in range(3)
            for seed in range(3)
        }
        assert len(orders) == 9

    def test_the_next_epoch_is_read_into_the_memory_of_the_last(self, made: Made) -> None:
        dataset, allocate = made("webdataset", "volume"), Recycled()
        first, second = (
            [
                sample.fields["image"].__array_interface__["data"][0]
                for sample in read(dataset, ReaderShare(0, 1, epoch, 0, True, 5, allocate))
            ]
            for epoch in range(2)
        )
        assert len(set(first)) < len(first) == 26
        assert set(second) <= set(first)

    def test_a_buffer_of_one_keeps_samples_of_one_together(self, made: Made) -> None:
        rows = [sample.index for sample in read(made("webdataset", "image"), ReaderShare(0, 1, 0, 0, True, 1))]
        assert rows != sorted(rows)
        assert rows == sorted(rows, key=lambda row: rows.index(row - row % 3))


class TestMembersOfVolumesAndSequences:
    def test_pickle_inside_npy_is_refused(self, mine: Made) -> None:
        dataset = mine("webdataset", "volume")
        path = tars(dataset)[0]
        stream = io.BytesIO()
        np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
        rewrite(dataset, path, [(name, stream.getvalue() if "label" in name else raw) for name, raw in members(path)])
        assert "holds pickled objects" in one_line(lambda: list(in_order(dataset)))

    def test_a_volume_without_its_label_is_named(self, mine: Made) -> None:
        dataset = mine("webdataset", "volume")
        path = tars(dataset)[0]
        rewrite(dataset, path, [pair for pair in members(path) if pair[0] != "case_00001.label.npy"])
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: sample 'case_00001' lacks .label.npy"

    @pytest.mark.parametrize("content", [b"", b"no array", members])
    def test_a_sequence_that_is_none_is_named(self, mine: Made, content: object) -> None:
        dataset = mine("webdataset", "mlm")
        path = tars(dataset)[0]
        stream = io.BytesIO()
        np.save(stream, np.zeros(3))
        raw = content if isinstance(content, bytes) else stream.getvalue()
        rewrite(dataset, path, [(members(path)[0][0], raw), *members(path)[1:]])
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: sample '00000000': not a ")


@pytest.fixture
def shard(small: Callable[[str], Dataset]) -> tuple[Dataset, Path]:
    """A dataset and its second shard, which holds `cat/d_v1` and `dog/a`."""
    dataset = small("webdataset")
    return dataset, tars(dataset)[1]


def read_error(dataset: Dataset) -> str:
    """The one line that reading the dataset, without verifying it first, ends with."""
    return one_line(lambda: list(in_order(dataset)))


def test_a_shard_cut_at_a_block_boundary_is_short(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2].offset
    with path.open("r+b") as file:
        file.truncate(third)
    agree(dataset, path)
    assert read_error(dataset) == f"{path}: 1 samples short of the 2 in the index"


def test_a_shard_cut_inside_a_member_is_corrupt(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    with path.open("r+b") as file:
        file.truncate(700)
    agree(dataset, path)
    assert str(path) in read_error(dataset)


def test_an_empty_shard_is_named(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    path.write_bytes(b"")
    agree(dataset, path)
    assert str(path) in read_error(dataset)


def test_swapped_shards_are_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    first = tars(dataset)[0]
    content = first.read_bytes()
    shutil.copy(path, first)
    path.write_bytes(content)
    agree(dataset, path), agree(dataset, first)
    assert "is not the one that the index names" in read_error(dataset)


def test_a_foreign_member_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(dataset, path, [("../evil.cls", b"0"), ("../evil.jpg", jpeg(9)), *members(path)])
    assert read_error(dataset) == f"{path}: member '../evil.cls' leads out of its folder"
    assert not list(dataset.folder.parent.rglob("evil*"))


def link_to(target: str, name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_a_link_in_place_of_an_image_is_noticed_and_not_followed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    (path.parent / "secret").write_bytes(jpeg(7))
    rest = [pair for pair in members(path) if pair[0] != "dog/a.jpg"]
    rewrite(dataset, path, rest, link_to(str(path.parent / "secret"), "dog/a.jpg"))
    assert read_error(dataset) == f"{path}: member 'dog/a.jpg' is no regular file"


def test_a_link_added_to_a_shard_is_refused(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(dataset, path, members(path), link_to("/etc/passwd", "evil.jpg"))
    assert read_error(dataset) == f"{path}: member 'evil.jpg' is no regular file"
    assert str(path) in one_line(lambda: verify_dataset(dataset.folder))
    assert not list(dataset.folder.rglob("evil*"))


def test_a_surplus_member_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(dataset, path, [*members(path), ("more.cls", b"0"), ("more.jpg", jpeg(9))])
    assert read_error(dataset) == f"{path}: sample 2: 'more' is not the one that the index names"


def test_a_sample_without_its_image_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    rewrite(dataset, path, [pair for pair in members(path) if pair[0] != "dog/a.jpg"])
    assert read_error(dataset) == f"{path}: sample 'dog/a' lacks .jpg"


def test_a_member_that_stands_twice_is_noticed(shard: tuple[Dataset, Path]) -> None:
    dataset, path = shard
    cls, *rest = members(path)
    rewrite(dataset, path, [cls, cls, *rest])
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
        convert_dataset(
            class_folder, tmp_path / "set", Wanted("resnet50", "tiny", "webdataset", options={"shard_samples": 0})
        )
    assert not (tmp_path / "set").exists()


def test_a_manifest_that_counts_a_shard_wrong_is_refused(small: Callable[[str], Dataset]) -> None:
    dataset = small("webdataset")
    dataset.manifest.files[0].num_samples = 6
    assert tars(dataset)[0].name in read_error(dataset)
    dataset.manifest.files[0].num_samples = None
    assert tars(dataset)[1].name in read_error(dataset)
    assert open_dataset(dataset.folder).manifest.files[0].num_samples == 2


def test_a_manifest_that_counts_the_shards_before_too_high_is_refused(small: Callable[[str], Dataset]) -> None:
    """A reader of the last shard alone must not run off the end of the index."""
    dataset = small("webdataset")
    dataset.manifest.files[0].num_samples = 100
    with pytest.raises(DatasetError, match="shard-000002"):
        list(read(dataset, ReaderShare(2, 3, 0, 0, False, 1)))
