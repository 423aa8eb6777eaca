"""`--on-error skip` where a file ends early: what came before is kept, and one line says what was lost."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import pytest

from benchsuite.storage.create.convert import SKIPPED, in_order
from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tfrecord import masked_crc
from tests.storage.samples import flip, jpeg
from tests.storage.sources.made import converted, tar
from tests.storage.sources.test_tables import record, tfrecord

BLOCK = 512
LENGTH_BYTES, CRC_BYTES = 8, 4
UNKNOWN = "what followed is unknown"


def left_out(source: Path, most: str = "50%") -> tuple[dict[str, tuple[bytes, int]], list[str]]:
    """The images that come through, by key with their classes, and the lines of the list, without the folder's name."""
    dataset = converted(source, "resnet50", most=most)
    kept = {
        sample.key: (bytes(sample.fields["image"]), int(bytes(sample.fields["label"]))) for sample in in_order(dataset)
    }
    lines = (dataset.folder / SKIPPED).read_text().splitlines()
    assert dataset.manifest.created["skipped_samples"] == len(lines)
    return kept, [line.replace(f"{source.parent}/", "") for line in lines]


def labelled(*numbers: int) -> list[tuple[str, bytes]]:
    """The members of samples, an image and its class each."""
    return [(f"{n}.{name}", content) for n in numbers for name, content in (("jpg", jpeg(n)), ("cls", b"%d" % n))]


def expected(*numbers: int) -> dict[str, tuple[bytes, int]]:
    return {str(number): (jpeg(number), number) for number in numbers}


class TestTars:
    @pytest.mark.parametrize(
        ("member", "after", "kept", "inside"),
        [
            ("2.jpg", -100, 2, ""),
            ("2.jpg", 0, 2, ", inside member '2.jpg'"),
            ("2.jpg", 99, 2, ", inside member '2.jpg'"),
            ("2.jpg", len(jpeg(2)), 2, ""),
            ("2.cls", -BLOCK, 2, ""),
            ("2.cls", 0, 2, ", inside member '2.cls'"),
            ("2.cls", 1, 3, ""),
            ("3.jpg", -BLOCK, 3, ""),
        ],
        ids=[
            "header",
            "no content",
            "content",
            "padding",
            "between members",
            "class",
            "class' padding",
            "between samples",
        ],
    )
    def test_cut(self, tmp_path: Path, member: str, after: int, kept: int, inside: str) -> None:
        """A sample that lost one of its members counts as part of what the cut lost."""
        source = tar(tmp_path / "a.tar", labelled(0, 1, 2, 3))
        with tarfile.open(source) as archive:
            size = archive.getmember(member).offset_data + after
        source.write_bytes(source.read_bytes()[:size])
        line = f"a.tar: cut short after {kept} samples (at byte {size}{inside}); {UNKNOWN}"
        assert left_out(source) == (expected(*range(kept)), [line])
        with pytest.raises(DatasetError) as raised:
            converted(source, "resnet50", "hdf5")
        assert str(raised.value) == f"{tmp_path}/{line}" and raised.value.may_skip

    def test_cut_in_a_header_of_several_blocks(self, tmp_path: Path) -> None:
        source = tar(tmp_path / "a.tar", [("0.jpg", jpeg(0)), (f"{'long' * 40}.jpg", jpeg(1))])
        size = BLOCK + -(-len(jpeg(0)) // BLOCK) * BLOCK + 2 * BLOCK
        source.write_bytes(source.read_bytes()[:size])
        line = f"a.tar: cut short after 1 sample (at byte {size}); {UNKNOWN}"
        assert left_out(source) == ({"0": (jpeg(0), 0)}, [line])

    @pytest.mark.parametrize(
        ("damage", "what", "remedy"),
        [
            (b"\xff" * 8, "damaged header", ""),
            (bytes(BLOCK), "goes on past its end mark", ": tars strung together? Unpack and pack them again"),
        ],
    )
    def test_a_damaged_header(self, tmp_path: Path, damage: bytes, what: str, remedy: str) -> None:
        """One of zeros looks like an end mark."""
        source = tar(tmp_path / "a.tar", labelled(0, 1, 2, 3))
        with tarfile.open(source) as archive:
            place = archive.getmember("2.jpg").offset
        content = source.read_bytes()
        source.write_bytes(content[:place] + damage + content[place + len(damage) :])
        line = f"a.tar: {what} after 2 samples (at byte {place}{remedy}); {UNKNOWN}"
        assert left_out(source) == (expected(0, 1), [line])

    def test_the_others_are_read_to_their_end(self, tmp_path: Path) -> None:
        """A folder whose images were lost is no reason to stop, and keeps its class its number."""
        source = tmp_path / "in"
        source.mkdir()
        for name, classes in (("a.tar", ("ant", "bee", "cat")), ("b.tar", ("ant", "dog"))):
            with tarfile.open(source / name, "w") as archive:
                for number, folder in enumerate(classes):
                    info = tarfile.TarInfo(folder)
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                    image = tarfile.TarInfo(f"{folder}/{name[0]}{number}.jpg")
                    image.size = len(jpeg(number))
                    archive.addfile(image, io.BytesIO(jpeg(number)))
        with tarfile.open(source / "a.tar") as archive:
            size = archive.getmember("bee/a1.jpg").offset_data + 100
        (source / "a.tar").write_bytes((source / "a.tar").read_bytes()[:size])
        (source / "c.tar").write_bytes(b"")
        kept, lines = left_out(source)
        assert kept == {"ant/a0": (jpeg(0), 0), "ant/b0": (jpeg(0), 0), "dog/b1": (jpeg(1), 2)}
        assert lines == [
            f"in/a.tar: cut short after 1 sample (at byte {size}, inside member 'bee/a1.jpg'); {UNKNOWN}",
            f"in/c.tar: cut short after 0 samples (at byte 0); {UNKNOWN}",
        ]

    def test_where_nothing_is_left_the_reason_is_told(self, tmp_path: Path) -> None:
        source = tmp_path / "a.tar"
        source.write_bytes(b"x" * 600)
        with pytest.raises(Damage) as raised:
            left_out(source, "5")
        nothing, reason = raised.value.told
        assert nothing.startswith(f"{source}: no image data: ")
        assert reason.startswith(f"{source}: damaged header after 0 samples (at byte 0: is it a tar?)")

    @pytest.mark.parametrize("size", [-1, 300])
    def test_a_compressed_one_is_to_be_unpacked_first(self, tmp_path: Path, size: int) -> None:
        """It may be whole: left out, it would be lost as one error."""
        source = tmp_path / "a.tar"
        source.write_bytes(gzip.compress(tar(tmp_path / "b", labelled(0)).read_bytes())[:size])
        with pytest.raises(DatasetError, match=r"a\.tar: compressed by gzip; unpack it first"):
            left_out(source)


class TestTfrecords:
    def made(self, path: Path, *numbers: int) -> tuple[Path, list[int]]:
        """A file of records with names, and where each begins."""
        named = [record(jpeg(number), number, key=(str(number).encode(), "byte")) for number in numbers]
        content, places = tfrecord(path, named).read_bytes(), [0]
        while places[-1] < len(content):
            (length,) = struct.unpack_from("<Q", content, places[-1])
            places.append(places[-1] + LENGTH_BYTES + CRC_BYTES + length + CRC_BYTES)
        return path, places

    @pytest.mark.parametrize(
        "after", [3, LENGTH_BYTES + 2, LENGTH_BYTES + CRC_BYTES + 40, -1], ids=["length", "its CRC", "data", "CRC"]
    )
    def test_cut(self, tmp_path: Path, after: int) -> None:
        source, places = self.made(tmp_path / "a.tfrecord", 0, 1, 2, 3)
        size = places[2] + after if after > 0 else places[3] + after
        source.write_bytes(source.read_bytes()[:size])
        line = f"a.tfrecord: cut short after 2 records (at byte {size}, in record 2); {UNKNOWN}"
        assert left_out(source) == (expected(0, 1), [line])
        with pytest.raises(DatasetError) as raised:
            converted(source, "resnet50", "hdf5")
        assert str(raised.value) == f"{tmp_path}/{line}" and raised.value.may_skip

    def test_a_wrong_crc_loses_a_record_and_that_of_a_length_the_rest(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        first, places = self.made(tmp_path / "in" / "a-0-of-2", 0, 1, 2, 3, 4)
        self.made(tmp_path / "in" / "a-1-of-2", 5, 6)
        flip(first, places[1] + LENGTH_BYTES + CRC_BYTES + 50)
        flip(first, places[3] + LENGTH_BYTES)
        unknown = f"the CRC of a length is wrong after 3 records (at byte {places[3]}, in record 3)"
        assert left_out(tmp_path / "in") == (
            expected(0, 2, 5, 6),
            [
                f"in/a-0-of-2: {unknown}; {UNKNOWN}",
                "in/a-0-of-2: record 1: its CRC is wrong: damaged",
            ],
        )

    def test_a_length_beyond_the_end(self, tmp_path: Path) -> None:
        """Its CRC is right: who wrote the file was stopped."""
        source, places = self.made(tmp_path / "a.tfrecord", 0)
        length = struct.pack("<Q", 1 << 40)
        source.write_bytes(source.read_bytes() + length + struct.pack("<I", masked_crc(length)))
        kept, (line,) = left_out(source)
        assert kept == expected(0)
        assert line.startswith(f"a.tfrecord: cut short after 1 record (at byte {places[1] + 12}, in record 1)")

    def test_a_compressed_one_is_to_be_unpacked_first(self, tmp_path: Path) -> None:
        source, _ = self.made(tmp_path / "a.tfrecord", 0, 1)
        source.write_bytes(gzip.compress(source.read_bytes()))
        with pytest.raises(DatasetError, match="compressed by gzip as a whole; unpack it first"):
            left_out(source)
