"""Format `tfrecord`: the conformance suite, an independent reader, independent checksums, and damage."""

import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from tfrecord.reader import tfrecord_loader

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats.tfrecord import masked_crc
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import flip, some_samples, store

KINDS = ["image", "mlm", "tokens", "volume"]


class TestTfrecord(FormatConformance, ImageConformance):
    name = "tfrecord"


def records(path: Path) -> list[tuple[int, bytes, int, int]]:
    """Offset, payload, and the checksums of length and payload of each record, taken apart by hand."""
    content, found, at = path.read_bytes(), [], 0
    while at < len(content):
        length, length_crc = struct.unpack_from("<QI", content, at)
        payload = content[at + 12 : at + 12 + length]
        found.append((at, payload, length_crc, struct.unpack_from("<I", content, at + 12 + length)[0]))
        at += 16 + length
    return found


def crc32c_bit_by_bit(content: bytes) -> int:
    """CRC-32C (Castagnoli) by its definition: polynomial 0x1EDC6F41, reflected."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


class TestChecksums:
    def test_the_check_value_of_the_standard(self) -> None:
        assert crc32c_bit_by_bit(b"123456789") == google_crc32c.value(b"123456789") == 0xE3069283
        assert masked_crc(b"123456789") == masked(0xE3069283)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_record_carries_them(self, made: Made, kind: str) -> None:
        dataset = made("tfrecord", kind)
        seen = 0
        for path in sorted(dataset.folder.glob("*.tfrecord")):
            for _, payload, length_crc, payload_crc in records(path):
                seen += 1
                assert length_crc == masked(crc32c_bit_by_bit(struct.pack("<Q", len(payload))))
                assert payload_crc == masked(google_crc32c.value(payload))
                assert len(payload) > 4000 or payload_crc == masked(crc32c_bit_by_bit(payload))
        assert seen == 26


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_beside_a_shard_tells_place_and_size_of_each_record(made: Made, kind: str) -> None:
    dataset = made("tfrecord", kind)
    shards = sorted(dataset.folder.glob("*.tfrecord"))
    assert len(shards) == 9
    for path in shards:
        lines = (path.parent / f"{path.name}.idx").read_text().splitlines()
        assert lines == [f"{offset} {16 + len(payload)}" for offset, payload, *_ in records(path)]


def by_another_reader(dataset: Dataset, **description: str) -> list[dict[str, np.ndarray]]:
    """All records in order, by the package `tfrecord`, with and without the index beside each shard."""
    shards = sorted(dataset.folder.glob("*.tfrecord"))
    plain = [record for path in shards for record in tfrecord_loader(str(path), None, description)]
    indexed = [record for path in shards for record in tfrecord_loader(str(path), f"{path}.idx", description)]
    assert len(plain) == len(indexed) == len(dataset.index)
    return plain


class TestAnotherReader:
    def test_images(self, made: Made) -> None:
        found = by_another_reader(
            made("tfrecord", "image"), **{"image/encoded": "byte", "image/class/label": "int", "key": "byte"}
        )
        for record, sample in zip(found, some_samples(26), strict=True):
            assert bytes(record["image/encoded"]) == sample.fields["image"]
            assert record["image/class/label"].tolist() == [int(sample.fields["label"])]
            assert bytes(record["key"]).decode() == sample.key

    def test_volumes(self, made: Made) -> None:
        found = by_another_reader(made("tfrecord", "volume"), X="byte", X_shape="int", Y="byte", Y_shape="int")
        for record, sample in zip(found, some_samples(26, "volume"), strict=True):
            image = np.frombuffer(bytes(record["X"]), "<f4").reshape(record["X_shape"])
            label = np.frombuffer(bytes(record["Y"]), "u1").reshape(record["Y_shape"])
            assert np.array_equal(image, sample.fields["image"])
            assert np.array_equal(label, sample.fields["label"])

    @pytest.mark.parametrize("kind", ["mlm", "tokens"])
    def test_sequences(self, made: Made, kind: str) -> None:
        samples = some_samples(26, kind)
        found = by_another_reader(made("tfrecord", kind), **dict.fromkeys(samples[0].fields, "int"))
        for record, sample in zip(found, samples, strict=True):
            for name, values in sample.fields.items():
                assert record[name].tolist() == values.reshape(-1).tolist()


class TestDamage:
    """Told while reading, without verifying first, by file and record."""

    @pytest.fixture
    def shard(self, mine: Made) -> tuple[Dataset, Path]:
        """A dataset whose second shard holds the third and the fourth sample."""
        dataset = mine("tfrecord", "image")
        return dataset, dataset.folder / "shard-000001.tfrecord"

    @pytest.mark.parametrize("bit", [0x01, 0x80])
    def test_a_flipped_bit_in_a_length(self, shard: tuple[Dataset, Path], bit: int) -> None:
        dataset, path = shard
        second = records(path)[1][0]
        for offset in range(second, second + 12):
            flip(path, offset, bit)
            message = one_line(lambda: list(in_order(dataset)))
            assert message == f"{path}: record 1: the CRC of its length is wrong: damaged, or no TFRecord"
            flip(path, offset, bit)
        verify_dataset(dataset.folder)

    def test_a_flipped_bit_in_a_payload(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        offset, payload, *_ = records(path)[1]
        for byte in (12, 12 + len(payload) // 2, 12 + len(payload) - 1, 12 + len(payload), 15 + len(payload)):
            flip(path, offset + byte, 0x10)
            assert one_line(lambda: list(in_order(dataset))) == f"{path}: record 1: its CRC is wrong: damaged"
            flip(path, offset + byte, 0x10)

    @pytest.mark.parametrize("kept", [5, 12, 300, -1])
    def test_a_shard_that_ends_inside_a_record(self, shard: tuple[Dataset, Path], kept: int) -> None:
        """The manifest agrees with the file's size, so that only its records tell."""
        dataset, path = shard
        whole = path.read_bytes()
        second = records(path)[1][0]
        path.write_bytes(whole[: second + kept] if kept > 0 else whole[:kept])
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: record 1: the file ends inside it: truncated"

    def test_a_shard_that_lacks_a_record(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        path.write_bytes(path.read_bytes()[: records(path)[1][0]])
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: 1 samples short of the 2 in the index"

    def test_a_record_too_many(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        path.write_bytes(path.read_bytes() * 2)
        agree(dataset, path)
        message = one_line(lambda: list(in_order(dataset)))
        assert message.startswith(f"{path}: sample 2: ") and message.endswith("is not the one that the index names")

    def test_a_length_beyond_the_file_is_not_allocated(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        length = struct.pack("<Q", 1 << 62)
        path.write_bytes(length + struct.pack("<I", masked_crc(length)) + bytes(100))
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: record 0: the file ends inside it: truncated"

    def test_swapped_shards(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        other = path.with_name("shard-000002.tfrecord")
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        agree(dataset, path)
        assert f"{path}: sample 0: " in one_line(lambda: list(in_order(dataset)))

    @pytest.mark.parametrize("payload", [b"", b"\x00garbage", b"\x0a\x02\x0a\x00"])
    def test_a_whole_record_that_is_no_such_sample(self, shard: tuple[Dataset, Path], payload: bytes) -> None:
        dataset, path = shard
        length = struct.pack("<Q", len(payload))
        record = length + struct.pack("<I", masked_crc(length)) + payload + struct.pack("<I", masked_crc(payload))
        path.write_bytes(record * 2)
        agree(dataset, path)
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: record 0: ")


def agree(dataset: Dataset, path: Path) -> None:
    """Have the opened manifest agree with a file's size."""
    for info in dataset.manifest.files:
        if info.path == path.name:
            info.bytes = path.stat().st_size


def test_the_same_samples_make_the_same_shards(made: Made, tmp_path: Path) -> None:
    again = store(some_samples(26, "mlm"), "mlm", tmp_path / "again", "tfrecord", {"shard_samples": 3}).manifest
    assert [info.digest for info in again.files] == [info.digest for info in made("tfrecord", "mlm").manifest.files]


def test_a_shard_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="shard_samples must be at least 1"):
        store(some_samples(2), "image", tmp_path / "set", "tfrecord", {"shard_samples": 0})
    assert not (tmp_path / "set").exists()
