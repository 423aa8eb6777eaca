"""Format `hdf5`: the conformance suite for each way of storing, and what is its own."""

import os
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, Sample
from benchsuite.storage.dataset.verify import verify_dataset
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import STORED, contents, some_samples, store

KINDS = [kind for name, kind in STORED if name == "hdf5"]


class TestHdf5(FormatConformance, ImageConformance):
    name = "hdf5"


class TestManyFiles(FormatConformance):
    name = "hdf5"
    options: ClassVar = {"file_samples": 4}


class TestChunks(FormatConformance):
    name = "hdf5"
    options: ClassVar = {"chunk_bytes": 512}


class TestCompression(FormatConformance):
    name = "hdf5"
    options: ClassVar = {"compression": "gzip", "file_samples": 9}


def stored_arrays(path: Path) -> dict[str, h5py.Dataset]:
    """Every dataset of an HDF5 file, by its path inside."""
    found: dict[str, h5py.Dataset] = {}
    h5py.File(path, "r").visititems(
        lambda name, item: found.setdefault(name, item) and None if isinstance(item, h5py.Dataset) else None
    )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_contiguous_unless_asked_otherwise(made: Made, kind: str) -> None:
    """One read of a sample is one read of the file."""
    arrays = stored_arrays(made("hdf5", kind).folder / "samples.h5")
    assert len(arrays) >= 1
    for array in arrays.values():
        assert array.chunks is None
        assert array.compression is None
        assert array.id.get_offset() is not None


def test_a_volumes_bytes_lie_where_the_file_says(made: Made) -> None:
    path = made("hdf5", "volume").folder / "samples.h5"
    content = path.read_bytes()
    for sample in some_samples(26, "volume"):
        for name, values in sample.fields.items():
            offset = h5py.File(path, "r")[sample.key][name].id.get_offset()
            assert content[offset : offset + values.nbytes] == values.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"chunk_bytes": 600}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_asked_for_chunks_and_compression_are_there(made: Made, kind: str, options: dict[str, int | str]) -> None:
    dataset = made("hdf5", kind, options)
    arrays = {
        name: array for name, array in stored_arrays(dataset.folder / "samples.h5").items() if "offsets" not in name
    }
    for array in arrays.values():
        assert array.chunks is not None
        assert array.compression == options.get("compression")
    assert dataset.manifest.options == options


def test_a_chunk_is_no_larger_than_asked_where_a_plane_fits(made: Made) -> None:
    for array in stored_arrays(made("hdf5", "volume", {"chunk_bytes": 4096}).folder / "samples.h5").values():
        assert np.prod(array.chunks) * array.dtype.itemsize <= 4096
        assert array.chunks[2:] == array.shape[2:]


def test_compressed_volumes_are_counted_as_they_lie_on_disk(made: Made) -> None:
    plain, packed = made("hdf5", "volume"), made("hdf5", "volume", {"compression": "gzip"})
    arrays = stored_arrays(packed.folder / "samples.h5")
    for row, sample in enumerate(some_samples(26, "volume")):
        on_disk = sum(arrays[f"{sample.key}/{name}"].id.get_storage_size() for name in sample.fields)
        assert packed.index["bytes"][row] == on_disk < sample.stored_bytes
    assert packed.manifest.stored_bytes < plain.manifest.stored_bytes
    assert packed.manifest.dataset_id == plain.manifest.dataset_id


@pytest.mark.parametrize("kind", KINDS)
def test_many_files_hold_what_one_does(made: Made, kind: str) -> None:
    many = made("hdf5", kind, {"file_samples": 4})
    assert [(info.path, info.num_samples) for info in many.manifest.files] == [
        (f"samples-{number:06d}.h5", 4 if number < 6 else 2) for number in range(7)
    ]
    assert many.manifest.dataset_id == made("hdf5", kind).manifest.dataset_id


def test_h5py_reads_images_by_hand(made: Made) -> None:
    dataset = made("hdf5", "image")
    with h5py.File(dataset.folder / "samples.h5") as file:
        offsets, blob, labels = file["image_offsets"][:], file["image"][:], file["label"][:]
    for row, sample in enumerate(some_samples(26)):
        assert blob[offsets[row] : offsets[row + 1]].tobytes() == sample.fields["image"]
        assert labels[row] == int(sample.fields["label"])


@pytest.mark.parametrize("kind", ["mlm", "tokens"])
def test_h5py_reads_sequences_by_hand(made: Made, kind: str) -> None:
    with h5py.File(made("hdf5", kind).folder / "samples.h5") as file:
        for row, sample in enumerate(some_samples(26, kind)):
            for name, values in sample.fields.items():
                assert file[name].dtype == values.dtype
                assert np.array_equal(file[name][row], values)


def test_h5py_reads_volumes_by_hand(made: Made) -> None:
    with h5py.File(made("hdf5", "volume").folder / "samples.h5") as file:
        for sample in some_samples(26, "volume"):
            for name, values in sample.fields.items():
                assert np.array_equal(file[sample.key][name][:], values)


def test_nothing_is_left_beside_the_files(made: Made) -> None:
    names = sorted(path.name for path in made("hdf5", "image").folder.iterdir())
    assert names == ["index.npy", "manifest.json", "samples.h5"]


def test_sequences_of_unequal_length_are_refused(tmp_path: Path) -> None:
    samples = [Sample(str(size), {"tokens": np.zeros(size, np.uint16)}) for size in (9, 8)]
    with pytest.raises(DatasetError, match="all must be equal"):
        store(samples, "tokens", tmp_path / "set", "hdf5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"file_samples": -1}, {"chunk_bytes": -1}])
def test_negative_options_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(DatasetError, match="must not be negative"):
        store(some_samples(2), "image", tmp_path / "set", "hdf5", options)


class TestForeignContent:
    """Files of the right size that are not what the manifest says, read without verifying first."""

    def replaced(self, dataset: Dataset, **arrays: np.ndarray) -> str:
        path = dataset.data_files()[0]
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
        dataset.manifest.files[0].bytes = path.stat().st_size
        message = one_line(lambda: list(in_order(dataset)))
        assert str(path) in message
        return message

    def test_offsets_beyond_the_blob(self, mine: Made) -> None:
        offsets, blob = np.array([0, 50, 10**12, 60, 70, 80, 90]), np.zeros(90, np.uint8)
        message = self.replaced(mine("hdf5", "image"), image=blob, image_offsets=offsets, label=np.zeros(6, int))
        assert "image_offsets 50..1000000000000 are outside the 90 bytes stored" in message

    def test_images_that_are_not_bytes(self, mine: Made) -> None:
        message = self.replaced(mine("hdf5", "image"), image=np.zeros((9, 9)), image_offsets=[0], label=[0])
        assert "image is float64 of shape (9, 9), not bytes in a row" in message

    def test_content_beyond_the_end_of_the_file(self, mine: Made) -> None:
        """The file was cut after it was opened, so that the library did not see it."""
        dataset = mine("hdf5", "volume")
        path = dataset.data_files()[0]
        samples = in_order(dataset)
        next(samples)
        os.truncate(path, 3000)
        message = one_line(lambda: list(samples))
        assert str(path) in message and dataset.key(1) in message

    def test_too_few_rows(self, mine: Made) -> None:
        dataset = mine("hdf5", "tokens")
        assert dataset.key(2) in self.replaced(dataset, tokens=np.zeros((2, 25), np.uint16))

    def test_a_missing_field(self, mine: Made) -> None:
        self.replaced(mine("hdf5", "mlm"), input_ids=np.zeros((6, 32), np.int32))

    def test_a_missing_volume(self, mine: Made) -> None:
        dataset = mine("hdf5", "volume")
        assert dataset.key(0) in self.replaced(dataset, other=np.zeros(3))


def rewritten(dataset: Dataset, user_block: int = 0, dtype: str = "<f4", **options: object) -> Dataset:
    """The dataset's volumes written anew by h5py, as others may write them."""
    samples = [(sample.key, dict(sample.fields)) for sample in in_order(dataset)]
    path = dataset.data_files()[0]
    with h5py.File(path, "w", userblock_size=user_block) as file:
        for key, fields in samples:
            file.create_dataset(f"{key}/image", data=fields["image"], dtype=dtype, **options)
            file.create_dataset(f"{key}/label", data=fields["label"])
    dataset.manifest.files[0].bytes = path.stat().st_size
    return dataset


class TestPlaces:
    """Where the file says that content lies, it is read past h5py; the library reads the rest."""

    @pytest.mark.parametrize(("user_block", "options"), [(0, {}), (512, {}), (4096, {}), (512, {"chunks": True})])
    def test_volumes_of_others_read_the_same(self, mine: Made, user_block: int, options: dict[str, object]) -> None:
        dataset = rewritten(mine("hdf5", "volume"), user_block, **options)
        for sample, written in zip(in_order(dataset), some_samples(6, "volume"), strict=True):
            for name, values in written.fields.items():
                assert np.array_equal(sample.fields[name], values)

    @pytest.mark.parametrize("dtype", [">f4", "<f8"])
    def test_other_numbers_keep_their_values(self, mine: Made, dtype: str) -> None:
        dataset = rewritten(mine("hdf5", "volume"), dtype=dtype)
        for sample, written in zip(in_order(dataset), some_samples(6, "volume"), strict=True):
            assert np.array_equal(sample.fields["image"], written.fields["image"])

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_library_reads_no_content_that_lies_in_one_piece(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.delattr("benchsuite.storage.formats.hdf5._Stored._select")
        assert len(list(in_order(made("hdf5", kind)))) == 26

    def test_content_that_was_never_written_is_the_fill_value(self, mine: Made) -> None:
        dataset = mine("hdf5", "tokens")
        path = dataset.data_files()[0]
        with h5py.File(path, "w") as file:
            file.create_dataset("tokens", (6, 25), np.uint16, fillvalue=7)
        dataset.manifest.files[0].bytes = path.stat().st_size
        assert {int(value) for sample in in_order(dataset) for value in np.asarray(sample.fields["tokens"])} == {7}


def test_a_converted_dataset_keeps_its_images(made: Made) -> None:
    assert contents(verify_dataset(made("hdf5", "image").folder)) == contents(made("files", "image"))
