"""Format `files`: the conformance suite, and what is its own."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, Sample
from benchsuite.storage.dataset.sample import fresh
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.files import read_npz, write
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import MLM_PARAMS, contents, flip, jpeg, some_samples, store


class TestFiles(FormatConformance, ImageConformance):
    name = "files"

    def test_lanes_differ_by_at_most_one_sample(self, form, made_dataset: Dataset) -> None:
        assert form.smallest_lane(made_dataset.manifest, 4) == 26 // 4


class TestNpz(FormatConformance):
    name = "files"
    options: ClassVar = {"array": "npz"}
    kinds = ("volume",)
    flips = (0.13, 0.37, 0.5, 0.77)
    """Not in the archive's own tables, which are no content of a sample and have no digest in this format."""


class TestImages:
    def test_each_sample_is_a_plain_jpeg_named_by_its_key(self, made: Made) -> None:
        dataset = made("files", "image")
        for key, (image, _) in contents(dataset).items():
            assert (dataset.folder / f"{key}.jpg").read_bytes() == image

    def test_a_png_is_kept_as_one(self, tmp_path: Path) -> None:
        stream = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(stream, "PNG")
        sample = Sample("class/one", {"image": stream.getvalue(), "label": b"0"})
        dataset = store([sample], "image", tmp_path / "set", "files")
        assert (dataset.folder / "class/one.png").read_bytes() == stream.getvalue()
        assert contents(verify_dataset(dataset.folder)) == {"class/one": (stream.getvalue(), 0)}

    def test_labels_stand_in_the_index(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        assert dataset.index["label"].tolist() == [0, 0, 0, 1, 1, 1]
        assert dataset.manifest.num_classes == 2
        assert dataset.manifest.files == []

    @pytest.mark.parametrize("key", ["../out", "/etc/out", "a/../../out"])
    def test_a_key_that_leads_out_of_the_folder_is_not_written(self, tmp_path: Path, key: str) -> None:
        (tmp_path / "set").mkdir()
        with pytest.raises(DatasetError, match="leads out"):
            list(write(tmp_path / "set", [Sample(key, {"image": jpeg(0), "label": b"0"})]))
        assert [path.name for path in tmp_path.rglob("*")] == ["set"]


class TestPairs:
    def test_numpy_reads_them(self, made: Made) -> None:
        dataset = made("files", "volume")
        for sample in some_samples(26, "volume"):
            for field, suffix in (("image", "x"), ("label", "y")):
                loaded = np.load(dataset.folder / f"{sample.key}_{suffix}.npy", allow_pickle=False)
                assert loaded.dtype == sample.fields[field].dtype
                assert np.array_equal(loaded, sample.fields[field])

    def test_the_second_file_of_each_pair_is_listed_with_its_digest(self, made: Made) -> None:
        dataset = made("files", "volume")
        assert [info.path for info in dataset.manifest.files] == [f"case_{row:05d}_y.npy" for row in range(26)]
        assert [bytes(name).decode() for name in dataset.index["file"]] == [
            f"case_{row:05d}_x.npy" for row in range(26)
        ]

    def test_pickle_inside_npy_is_refused(self, mine: Made) -> None:
        dataset = mine("files", "volume")
        path = dataset.folder / "case_00002_x.npy"
        np.save(path, np.array([{"what": "ever"}], dtype=object), allow_pickle=True)
        message = one_line(lambda: list(in_order(dataset)))
        assert message.startswith(f"{path}: holds pickled objects")

    def test_fortran_order_is_read_as_numpy_does(self, mine: Made) -> None:
        dataset = mine("files", "volume")
        image = np.asfortranarray(some_samples(1, "volume")[0].fields["image"])
        np.save(dataset.folder / "case_00000_x.npy", image)
        assert np.array_equal(next(in_order(dataset)).fields["image"], image)
        verify_dataset(dataset.folder)

    @pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\0\x10\0{'descr': broken", b"P" * 300])
    def test_what_is_no_npy_is_named(self, mine: Made, content: bytes) -> None:
        dataset = mine("files", "volume")
        path = dataset.folder / "case_00001_y.npy"
        path.write_bytes(content)
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: not a .npy array: ")


class TestNpzFiles:
    @pytest.fixture
    def npz(self, mine: Made) -> tuple[Dataset, Path]:
        dataset = mine("files", "volume", {"array": "npz"})
        return dataset, dataset.data_files()[3]

    def test_numpy_reads_them(self, npz: tuple[Dataset, Path]) -> None:
        sample = some_samples(6, "volume")[3]
        with np.load(npz[1], allow_pickle=False) as loaded:
            assert sorted(loaded.files) == ["x", "y"]
            assert np.array_equal(loaded["x"], sample.fields["image"])
            assert np.array_equal(loaded["y"], sample.fields["label"])

    def test_compressed_ones_of_others_are_read(self, tmp_path: Path) -> None:
        fields = some_samples(1, "volume")[0].fields
        np.savez_compressed(tmp_path / "a.npz", x=fields["image"], y=fields["label"])
        found = read_npz(tmp_path / "a.npz", fresh)
        assert all(np.array_equal(found[name], fields[name]) for name in ("image", "label"))

    def test_damage_is_found_by_its_crc_while_reading(self, npz: tuple[Dataset, Path]) -> None:
        dataset, path = npz
        flip(path, path.stat().st_size // 2)
        assert one_line(lambda: list(in_order(dataset))) == f"{path}: x.npy: its CRC is not the archive's"

    def test_one_without_y_is_named(self, npz: tuple[Dataset, Path]) -> None:
        dataset, path = npz
        np.savez(path, x=np.zeros(3), z=np.zeros(3))
        message = one_line(lambda: list(in_order(dataset)))
        assert message.startswith(f"{path}: ") and "y.npy" in message

    @pytest.mark.parametrize("mask", [0x01, 0xFF])
    def test_damage_of_its_tables_never_ends_in_a_traceback(self, npz: tuple[Dataset, Path], mask: int) -> None:
        """Headers, and the directory at the end; some flips (time stamps) rightly do not matter."""
        dataset, path = npz
        size = path.stat().st_size
        found = 0
        for offset in [*range(0, 200), *range(size - 250, size)]:
            flip(path, offset, mask)
            try:
                verify_dataset(dataset.folder)
            except DatasetError as error:
                found += 1
                assert str(path) in str(error) and "\n" not in str(error), offset
            flip(path, offset, mask)
        assert found > 150


class TestRecords:
    def test_bert_samples_are_structured_scalars_that_numpy_reads(self, made: Made) -> None:
        dataset = made("files", "mlm")
        for sample in some_samples(26, "mlm"):
            loaded = np.load(dataset.folder / f"{sample.key}.npy", allow_pickle=False)
            assert loaded.shape == ()
            assert loaded.dtype["input_ids"].shape == (MLM_PARAMS["seq_len"],)
            for name, value in sample.fields.items():
                assert loaded[name].dtype == value.dtype
                assert np.array_equal(loaded[name], value)

    def test_an_array_that_is_no_record_is_named(self, mine: Made) -> None:
        dataset = mine("files", "mlm")
        path = dataset.data_files()[1]
        np.save(path, np.zeros(4))
        assert one_line(lambda: list(in_order(dataset))).startswith(f"{path}: not a record of input_ids")

    def test_windows_are_plain_arrays(self, made: Made) -> None:
        dataset = made("files", "tokens")
        for sample in some_samples(26, "tokens"):
            assert np.array_equal(np.load(dataset.folder / f"{sample.key}.npy"), sample.fields["tokens"])


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2**62, 4), "<f4"), ((2**70,), "<f4"), ((-1,), "<f4"), ((4,), "|V0")], ids=str
)
def test_a_header_that_no_array_has_is_refused(shape: tuple[int, ...], dtype: str) -> None:
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)
    with pytest.raises(DatasetError, match=r"^here: "):
        npy.view(content, "here")
