"""Format `parquet`: the conformance suite, what other readers see, how reading is told from decoding, and damage."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchsuite.storage import stock_reader
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats import parquet
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import flip, some_samples, store

KINDS = ["image", "mlm", "tokens"]


class TestParquet(FormatConformance, ImageConformance):
    name = "parquet"


class TestSmallRowGroups(FormatConformance):
    name = "parquet"
    options: ClassVar[dict[str, int | str]] = {"row_group_samples": 2, "compression": "zstd"}


class TestOtherReaders:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_table_of_all_rows(self, made: Made, kind: str) -> None:
        dataset = made("parquet", kind)
        table = pq.read_table(dataset.data_files()).to_pylist()
        for row, sample in zip(table, some_samples(26, kind), strict=True):
            assert row.pop("key") == sample.key
            if kind == "image":
                assert row["image"]["bytes"] == sample.fields["image"]
                assert row["image"]["path"] == f"{sample.key}.jpg"
                assert row["label"] == int(bytes(sample.fields["label"]))
                continue
            assert {name: np.asarray(value).tolist() for name, value in row.items()} == {
                name: np.asarray(value).tolist() for name, value in sample.fields.items()
            }

    def test_tokens_are_lists_of_a_fixed_length(self, made: Made) -> None:
        dataset = made("parquet", "tokens")
        assert pq.read_schema(dataset.data_files()[0]).field("tokens").type == pa.list_(pa.uint16(), 25)

    def test_hugging_faces_datasets_takes_images_for_images(self, made: Made) -> None:
        told = pq.read_schema(made("parquet", "image").data_files()[0]).metadata[b"huggingface"]
        assert json.loads(told)["info"]["features"]["image"] == {"_type": "Image"}

    @pytest.mark.parametrize("kind", KINDS)
    def test_compression_is_as_hugging_faces_datasets_has_it_unless_told(
        self, made: Made, tmp_path: Path, kind: str
    ) -> None:
        told = store(some_samples(26, kind), kind, tmp_path / "told", "parquet", {"compression": "gzip"})
        for dataset, wanted in ((made("parquet", kind), ["UNCOMPRESSED", "SNAPPY"][kind != "image"]), (told, "GZIP")):
            group = pq.ParquetFile(dataset.data_files()[0]).metadata.row_group(0)
            assert {group.column(number).compression for number in range(group.num_columns)} == {wanted}

    def test_files_hold_row_groups_of_so_many_samples(self, tmp_path: Path) -> None:
        options = {"shard_samples": 10, "row_group_samples": 4}
        dataset = store(some_samples(26), "image", tmp_path / "set", "parquet", options)
        opened = [pq.ParquetFile(path).metadata for path in dataset.data_files()]
        sizes = [[each.row_group(number).num_rows for number in range(each.num_row_groups)] for each in opened]
        assert sizes == [[4, 4, 2], [4, 4, 2], [4, 2]]


def test_compressed_samples_have_the_bytes_that_they_occupy(tmp_path: Path) -> None:
    samples = some_samples(26, "mlm")
    dataset = store(samples, "mlm", tmp_path / "set", "parquet", {"compression": "zstd", "shard_samples": 26})
    group = pq.ParquetFile(dataset.data_files()[0]).metadata.row_group(0)
    occupied = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    content = sum(sample.stored_bytes for sample in samples)
    assert occupied < content
    assert occupied - len(samples) <= dataset.manifest.stored_bytes <= occupied
    assert verify_dataset(dataset.folder).manifest == dataset.manifest


class TestUnpacking:
    """A row group's decoding is told by the clock of the thread that does it, and is no part of its reading."""

    @pytest.fixture
    def dataset(self, tmp_path: Path) -> Dataset:
        options = {"compression": "gzip", "row_group_samples": 100}
        return store(some_samples(400, "mlm"), "mlm", tmp_path / "set", "parquet", options)

    def test_it_is_told_once_a_row_group(self, dataset: Dataset) -> None:
        told: list[float] = []
        assert len(list(parquet.read(dataset, ReaderShare(unpacked=told.append)))) == 400
        assert len(told) == len(dataset.data_files()) and min(told) > 0

    def test_the_stock_reader_tells_it_too(self, dataset: Dataset) -> None:
        told: list[float] = []
        found = stock_reader("parquet").stream(dataset, ReaderShare(unpacked=told.append))
        assert len(list(found)) == 400
        assert len(told) == len(dataset.data_files()) and min(told) > 0

    def test_nothing_is_read_while_it_is_decoded(self, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        """All bytes of a row group are there before: those that are decoded are cut off from the file."""
        decoded = parquet._decoded
        victim = dataset.data_files()[0]

        def hidden(*arguments: object) -> object:
            content = victim.read_bytes()
            victim.write_bytes(bytes(len(content)))
            try:
                return decoded(*arguments)
            finally:
                victim.write_bytes(content)

        monkeypatch.setattr(parquet, "_decoded", hidden)
        assert len(list(in_order(dataset))) == 400


class TestDamage:
    """Told while reading, without verifying first, by file and row group."""

    @pytest.fixture
    def shard(self, mine: Made) -> tuple[Dataset, Path]:
        """A dataset whose second shard holds the third and the fourth sample."""
        dataset = mine("parquet", "image")
        return dataset, dataset.folder / "shard-000001.parquet"

    @pytest.mark.parametrize("mask", [0x01, 0x80])
    @pytest.mark.parametrize("place", [0, 0.5, 1])
    def test_a_flipped_bit_in_an_image(self, shard: tuple[Dataset, Path], mask: int, place: float) -> None:
        dataset, path = shard
        image = bytes(some_samples(4)[3].fields["image"])
        flip(path, path.read_bytes().index(image) + int(place * (len(image) - 1)), mask)
        told = one_line(lambda: list(in_order(dataset)))
        assert told.startswith(f"{path}: row group 0: ") and "CRC checksum verification failed" in told

    def test_a_flipped_byte_anywhere_in_the_file(self, shard: tuple[Dataset, Path]) -> None:
        """It is told, or what is read is what was written: parts of a footer are about nothing that is read."""
        dataset, path = shard
        whole = [bytes(sample.fields["image"]) for sample in in_order(dataset)]
        for offset in range(0, path.stat().st_size, 7):
            flip(path, offset)
            try:
                found = [bytes(sample.fields["image"]) for sample in in_order(dataset)]
                assert found == whole, offset
            except DatasetError as error:
                assert str(path) in str(error) and "\n" not in str(error)
            flip(path, offset)

    def test_a_row_group_too_few(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        pq.write_table(pq.read_table(path).slice(0, 1), path)
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: 1 samples short of the 2 in the index"

    def test_other_columns(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        pq.write_table(pq.read_table(path).drop_columns(["label"]), path)
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: row group 0: ")

    def test_a_value_that_is_missing(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        table = pq.read_table(path)
        pq.write_table(table.set_column(2, "label", pa.array([None, 1], pa.int64())), path)
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: row group 0: a value is missing"

    def test_no_parquet(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        path.write_bytes(b"PAR1" + bytes(100) + (1 << 31).to_bytes(4, "little") + b"PAR1")
        agree(dataset, path)
        told = one_line(lambda: list(in_order(dataset)))
        assert told == f"{path}: no Parquet footer at its end: truncated or damaged"


def agree(dataset: Dataset, path: Path) -> None:
    """Have the opened manifest agree with a file's size."""
    for info in dataset.manifest.files:
        if info.path == path.name:
            info.bytes = path.stat().st_size


@pytest.mark.parametrize("option", ["shard_samples", "row_group_samples"])
def test_none_in_a_file_or_row_group_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(DatasetError, match=f"{option} must be at least 1"):
        store(some_samples(2), "image", tmp_path / "set", "parquet", {option: 0})
    assert not (tmp_path / "set").exists()
