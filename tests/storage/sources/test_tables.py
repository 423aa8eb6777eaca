"""Images in HDF5, LMDB and TFRecord."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from tfrecord.writer import TFRecordWriter

from benchsuite.storage.create.convert import Wanted, convert_dataset
from tests.helpers.snapshots import compare_messages
from tests.storage.samples import jpeg
from tests.storage.sources.made import converted, images, png, refusal

IMAGES = [jpeg(0), png(1), jpeg(2)]


def vlen(file: h5py.File, name: str = "images", contents: list[bytes] = IMAGES) -> None:
    stored = file.create_dataset(name, len(contents), h5py.vlen_dtype(np.uint8))
    for row, content in enumerate(contents):
        stored[row] = np.frombuffer(content, np.uint8)


def h5(path: Path, fill: Callable[[h5py.File], Any]) -> Path:
    with h5py.File(path, "w") as file:
        fill(file)
    return path


class TestHdf5:
    @pytest.mark.parametrize(("name", "label"), [("images", "labels"), ("image", "label"), ("data", "label")])
    def test_byte_strings_of_any_length(self, tmp_path: Path, name: str, label: str) -> None:
        def fill(file: h5py.File) -> None:
            vlen(file, name)
            file[label] = np.array([5, 0, 2])

        expected = dict(zip(["00000000", "00000001", "00000002"], zip(IMAGES, [5, 0, 2], strict=True), strict=True))
        assert images(h5(tmp_path / "a.h5", fill)) == expected

    def test_opaque_bytes(self, tmp_path: Path) -> None:
        width = max(map(len, IMAGES))

        def fill(file: h5py.File) -> None:
            file["images"] = np.array([np.void(content.ljust(width, b"\0")) for content in IMAGES])
            file["labels"] = np.array([[1], [2], [3]], np.uint8)

        assert [*images(h5(tmp_path / "a.hdf5", fill)).values()] == list(zip(IMAGES, [1, 2, 3], strict=True))

    def test_files_of_a_folder_are_numbered_on(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for number in range(2):

            def fill(file: h5py.File, number: int = number) -> None:
                vlen(file, contents=[jpeg(number)])
                file["labels"] = np.array([number])

            h5(tmp_path / "in" / f"{number}.h5", fill)
        assert images(tmp_path / "in") == {"00000000": (jpeg(0), 0), "00000001": (jpeg(1), 1)}

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "pixels": lambda file: file.update(images=np.zeros((2, 8, 8, 3), "u1"), labels=[0, 1]),
            "pixels in two dimensions": lambda file: file.update(images=np.zeros((2, 8), "u1"), labels=[0, 1]),
            "no labels": vlen,
            "two labels for three images": lambda file: (vlen(file), file.update(labels=[0, 1])),
            "a label of a half": lambda file: (vlen(file), file.update(labels=[0.5, 1, 2])),
            "a negative label": lambda file: (vlen(file), file.update(labels=[0, -1, 2])),
            "an image that is cut off": lambda file: (
                vlen(file, contents=[jpeg(0), jpeg(1)[:-9]]),
                file.update(labels=[0, 1]),
            ),
            "an empty image": lambda file: (vlen(file, contents=[b""]), file.update(labels=[0])),
            "no images": lambda file: file.update(other=[1]),
            "a link to another file": lambda file: file.update(images=h5py.ExternalLink("b.h5", "/images")),
        }

        def message(fill: Callable[[h5py.File], Any]) -> str:
            source = h5(tmp_path / "a.h5", fill)
            message = refusal(source, "resnet50")
            assert message.startswith(f"{source}: ")
            return message

        compare_messages("image_tables_hdf5", cases, message, {str(tmp_path): "FOLDER"})

    @pytest.mark.parametrize("size", [0, 7, 500, -1])
    def test_cut(self, tmp_path: Path, size: int) -> None:
        source = h5(tmp_path / "a.h5", lambda file: (vlen(file), file.update(labels=[0, 1, 2])))
        source.write_bytes(source.read_bytes()[:size])
        assert refusal(source, "resnet50").startswith(f"{source}: not a whole HDF5 file: ")


def mdb(folder: Path, entries: dict[str, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key.encode(), value)
    return folder


class TestLmdb:
    def test_keys_name_the_classes(self, tmp_path: Path) -> None:
        entries = {"dog/b.jpg": jpeg(1), "cat/a.v1.png": png(0), "__len__": pickle.dumps(2)}
        source = mdb(tmp_path / "in", entries)
        expected = {"cat/a_v1": (png(0), 0), "dog/b": (jpeg(1), 1)}
        assert images(source) == expected
        assert images(source / "data.mdb") == expected

    def test_flat_keys(self, tmp_path: Path) -> None:
        assert images(mdb(tmp_path / "in", {"00": jpeg(0), "01": jpeg(1)})) == {"00": (jpeg(0), 0), "01": (jpeg(1), 0)}

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "a pickle": {"0": jpeg(0), "1": pickle.dumps(jpeg(1))},
            "a Datum of Caffe": {"0": b"\x08\x03\x10\x80\x02\x18\x80\x02\x22\x03abc\x28\x05"},
            "a Datum without a shape": {"0": b"\x28\x05\x38\x01"},
            "a label as text": {"image-1": jpeg(0), "label-1": b"cat"},
            "an image that is cut off": {"0": jpeg(0)[:-9]},
            "two images of one key": {"a.jpg": jpeg(0), "a.png": png(0)},
            "nothing": {},
        }

        def message(entries: dict[str, bytes]) -> str:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            source = mdb(folder / "in", entries)
            return refusal(source, "resnet50").replace(str(folder), "FOLDER")

        compare_messages("image_tables_lmdb", cases, message)

    @pytest.mark.parametrize("size", [0, 100, 8192])
    def test_cut(self, tmp_path: Path, size: int) -> None:
        source = mdb(tmp_path / "in", {f"{n}": jpeg(n) for n in range(20)}) / "data.mdb"
        source.write_bytes(source.read_bytes()[:size])
        assert refusal(source.parent, "resnet50").startswith(f"{source}: ")


def record(image: bytes, label: int, **more: tuple[Any, str]) -> dict[str, tuple[Any, str]]:
    return {"image/encoded": (image, "byte"), "image/class/label": (label, "int"), **more}


def tfrecord(path: Path, records: list[dict[str, tuple[Any, str]]]) -> Path:
    writer = TFRecordWriter(str(path))
    for features in records:
        writer.write(features)
    writer.close()
    return path


class TestTfrecord:
    def test_names_and_numbers(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        named = record(jpeg(0), 1000, **{"image/filename": (b"n01440764_18.JPEG", "byte")})
        tfrecord(tmp_path / "in" / "train-00000-of-00002", [named, record(png(1), 1)])
        tfrecord(tmp_path / "in" / "train-00001-of-00002", [record(jpeg(2), 2, key=(b"mine", "byte"))])
        (tmp_path / "in" / "train-00000-of-00002.idx").write_text("0 99\n")
        expected = {"n01440764_18": (jpeg(0), 1000), "00000001": (png(1), 1), "mine": (jpeg(2), 2)}
        assert images(tmp_path / "in") == expected

    def test_imagenets_labels_count_from_one_and_ours_from_zero(self, tmp_path: Path) -> None:
        """In tensorflow/models' build_imagenet_data.py, 1 to 1000 beside a synset; the model has 1000 classes."""
        synset = {"image/class/synset": (b"n01440764", "byte")}
        source = tfrecord(tmp_path / "train-00000-of-01024", [record(jpeg(0), 1, **synset), record(jpeg(1), 1000)])
        assert [label for _, label in images(source).values()] == [0, 1000]
        whole = [record(jpeg(number), number, **synset) for number in (1, 1000)]
        dataset = converted(tfrecord(tmp_path / "train-00001-of-01024", whole), "resnet50")
        assert dataset.manifest.num_classes == 1000
        none = tfrecord(tmp_path / "train-00002-of-01024", [record(jpeg(0), 0, **synset)])
        expected = f"{none}: record 0: label 0 beside image/class/synset, where labels count from 1"
        assert refusal(none, "resnet50") == expected

    def test_those_of_tensorflow_datasets(self, tmp_path: Path) -> None:
        features = {"image": (jpeg(0), "byte"), "label": (0, "int"), "file_name": (b"n01440764_10026.JPEG", "byte")}
        source = tfrecord(tmp_path / "imagenet2012-train.tfrecord-00000-of-01024", [features])
        assert images(source) == {"n01440764_10026": (jpeg(0), 0)}

    def test_what_this_project_writes(self, tmp_path: Path, class_folder: Path) -> None:
        convert_dataset(class_folder, tmp_path / "own", Wanted("resnet50", "tiny", "tfrecord"))
        (tmp_path / "own" / "manifest.json").unlink()
        result = images(tmp_path / "own")
        assert result["dog/deep/er"] == (jpeg(5), 1)
        assert len(result) == 6

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "no image": {"x": (1, "int")},
            "no label": {"image/encoded": (jpeg(0), "byte")},
            "a label as text": record(jpeg(0), 0) | {"image/class/label": (b"cat", "byte")},
            "two labels": record(jpeg(0), 0) | {"image/class/label": ([3, 4], "int")},
            "an image that is cut off": record(jpeg(0)[:-9], 0),
            "a key that is no text": record(jpeg(0), 0, key=(b"\xff", "byte")),
            "a key that is taken": record(jpeg(0), 0, key=(b"same", "byte")),
        }
        first = record(jpeg(0), 0, key=(b"same", "byte"))

        def message(features: dict[str, Any]) -> str:
            source = tfrecord(tmp_path / "a.tfrecords", [first, features])
            message = refusal(source, "resnet50")
            assert message.startswith(f"{source}: record 1: ")
            return message

        compare_messages("image_tables_tfrecord", cases, message, {str(tmp_path): "FOLDER"})

    def test_cut_and_damaged(self, tmp_path: Path) -> None:
        content = tfrecord(tmp_path / "a.tfrecord", [record(jpeg(n), n) for n in range(3)]).read_bytes()
        size = len(content) // 3
        cases = {
            content[:5]: "cut short after 0 records (at byte 5, in record 0); what followed is unknown",
            content[: size + 20]: f"cut short after 1 record (at byte {size + 20}, in record 1)",
            content[:-1]: f"cut short after 2 records (at byte {len(content) - 1}, in record 2)",
            b"\x1f\x8b" + content: "compressed by gzip",
            b"some other file that is longer than a header": "the CRC of a length is wrong after 0 records (at",
            content[:40] + b"\0" + content[41:]: "record 0: its CRC is wrong",
            b"": "no image data: looked for records",
        }
        for number, (damaged, words) in enumerate(cases.items()):
            source = tmp_path / f"{number}.tfrecord"
            source.write_bytes(damaged)
            message = refusal(source, "resnet50")
            assert words in message
            assert str(source) in message
