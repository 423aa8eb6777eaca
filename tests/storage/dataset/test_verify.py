"""Every kind of damage to a dataset is found, and said in one line that names the file."""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.dataset.manifest import INDEX, MANIFEST, Dataset, DatasetError, ReaderShare, open_dataset
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from tests.helpers.turns import each_once
from tests.storage.conftest import Made
from tests.storage.samples import IMAGE_FORMATS, contents, flip, jpeg

every_format = pytest.mark.parametrize("name", IMAGE_FORMATS)
every_format_and_mask = pytest.mark.parametrize(("name", "mask"), each_once(IMAGE_FORMATS, [0x01, 0xFF]))
few_or_every_offset = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.full)])
"""Of the bytes that are flipped; no multiple of a row's or a field's length, so that each field is met."""


def complaint(folder: Path) -> str:
    with pytest.raises(DatasetError) as raised:
        verify_dataset(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def edit_manifest(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def edit_index(folder: Path, column: str, row: int, value: object) -> None:
    index = np.load(folder / INDEX)
    index[column][row] = value
    np.save(folder / INDEX, index)


@pytest.mark.full  # of every kind of sample in the conformance suite of each format
@every_format
def test_a_whole_dataset_passes(small: Callable[[str], Dataset], name: str) -> None:
    dataset = small(name)
    assert contents(verify_dataset(dataset.folder)) == contents(dataset)


@every_format
def test_a_generated_dataset_passes(dataset_root: Path, name: str) -> None:
    assert verify_dataset(dataset_root / name).manifest.num_samples == 96


@pytest.mark.full  # as above
@every_format
def test_a_moved_dataset_passes(small: Callable[[str], Dataset], name: str) -> None:
    folder = small(name).folder
    folder.rename(folder.with_name("elsewhere"))
    verify_dataset(folder.with_name("elsewhere"))


class TestFiles:
    def test_a_flipped_byte(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        path = dataset.data_files()[4]
        flip(path, path.stat().st_size // 2)
        key = dataset.key(4)
        assert complaint(dataset.folder) == f"{path}: sample {key!r}: its checksum is not the index's"

    def test_a_missing_file(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        dataset.data_files()[4].unlink()
        assert complaint(dataset.folder) == f"{dataset.data_files()[4]}: No such file or directory"

    def test_a_file_cut_short(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        os.truncate(dataset.data_files()[0], 100)
        assert str(dataset.data_files()[0]) in complaint(dataset.folder)

    def test_two_files_swapped(self, small: Callable[[str], Dataset]) -> None:
        first, second, *_ = small("files").data_files()
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
        assert str(first) in complaint(first.parents[1])

    def test_a_folder_in_place_of_a_file(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        path = dataset.data_files()[3]
        path.unlink()
        path.mkdir()
        assert str(path) in complaint(dataset.folder)


@pytest.mark.parametrize(("name", "start"), each_once(IMAGE_FORMATS, [1, 2]))
def test_a_format_can_be_read_from_any_place(small: Callable[[str], Dataset], name: str, start: int) -> None:
    """Of shards, which hold two samples each, from any shard."""
    dataset = small(name)
    form = load(FORMATS, name)
    rows = [sample.index for sample in form.read(dataset, ReaderShare(0, 1, 0, 0, False, 1, start=start))]
    assert rows == [*range(start * 2 if form.sequential else start, 6)]


class TestOldDigests:
    """Datasets made before BLAKE3 carry blake2b digests in hex alone."""

    def aged(self, dataset: Dataset) -> Path:
        files = json.loads((dataset.folder / MANIFEST).read_text())["files"]
        assert files and all(info["digest"].startswith("blake3") for info in files)
        for info in files:
            info["digest"] = hashlib.blake2b((dataset.folder / info["path"]).read_bytes(), digest_size=16).hexdigest()
        edit_manifest(dataset.folder, files=files)
        return dataset.folder

    @pytest.mark.parametrize(("name", "kind"), [("webdataset", "image"), ("lmdb", "mlm"), ("files", "volume")])
    def test_verify(self, mine: Made, name: str, kind: str) -> None:
        assert verify_dataset(self.aged(mine(name, kind))).manifest.num_samples == 6

    def test_find_damage(self, mine: Made) -> None:
        folder = self.aged(mine("webdataset", "image"))
        flip(folder / "shard-000001.tar", -1 + (folder / "shard-000001.tar").stat().st_size)
        assert complaint(folder) == f"{folder / 'shard-000001.tar'}: its checksum is not the manifest's"

    def test_a_digest_of_neither_sort_is_not_taken_for_either(self, mine: Made) -> None:
        folder = mine("lmdb", "image").folder
        files = json.loads((folder / MANIFEST).read_text())["files"]
        kind, _, digits = files[0]["digest"].partition(":")
        for digest in (f"blake3:{kind}:{digits}", f"blake3:{digits}", f"blake3-from-1:{digits}", digits):
            edit_manifest(folder, files=[{**files[0], "digest": digest}])
            assert "its checksum is not the manifest's" in complaint(folder)


class TestTar:
    def test_a_flipped_byte_in_an_image(self, small: Callable[[str], Dataset]) -> None:
        path = small("webdataset").data_files()[1]
        with tarfile.open(path) as tar:
            member = next(info for info in tar if info.name.endswith(".jpg"))
        flip(path, member.offset_data + 100)
        assert complaint(path.parent) == f"{path}: its checksum is not the manifest's"

    def test_a_flipped_byte_in_the_padding(self, small: Callable[[str], Dataset]) -> None:
        path = small("webdataset").data_files()[1]
        flip(path, path.stat().st_size - 1)
        assert complaint(path.parent) == f"{path}: its checksum is not the manifest's"

    def test_cut_at_a_block_boundary(self, small: Callable[[str], Dataset]) -> None:
        path = small("webdataset").data_files()[1]
        with tarfile.open(path) as tar:
            boundary = tar.getmembers()[2].offset
        size = path.stat().st_size
        os.truncate(path, boundary)
        assert complaint(path.parent) == f"{path}: {boundary} bytes, the manifest says {size}: truncated or changed"

    def test_a_missing_shard(self, small: Callable[[str], Dataset]) -> None:
        path = small("webdataset").data_files()[2]
        path.unlink()
        assert complaint(path.parent) == f"{path}: missing; the manifest names it"

    def test_a_shard_the_manifest_does_not_name(self, small: Callable[[str], Dataset]) -> None:
        folder = small("webdataset").folder
        files = json.loads((folder / MANIFEST).read_text())["files"]
        edit_manifest(folder, files=files[:2])
        assert str(folder) in complaint(folder)
        edit_manifest(folder, files=[files[1], files[0], files[2]])
        assert "is not the one that the index names" in complaint(folder)
        edit_manifest(folder, files=[*files, files[0]])
        assert str(folder) in complaint(folder)

    def test_a_shard_outside_the_folder(self, small: Callable[[str], Dataset]) -> None:
        folder = small("webdataset").folder
        files = json.loads((folder / MANIFEST).read_text())["files"]
        (folder / files[0]["path"]).rename(folder.parent / "moved.tar")
        edit_manifest(folder, files=[{**files[0], "path": "../moved.tar"}, *files[1:]])
        assert complaint(folder) == f"{folder}: '../moved.tar' leads out of the dataset"

    def test_keys_that_are_not_those_of_the_index(self, small: Callable[[str], Dataset], tmp_path: Path) -> None:
        """Shard and manifest agree, and are another dataset's."""
        ours = small("webdataset")
        (tmp_path / "others").mkdir()
        for number in range(6):
            (tmp_path / "others" / f"{number}.jpg").write_bytes(jpeg(number))
        convert_dataset(
            tmp_path / "others",
            tmp_path / "theirs",
            Wanted("resnet50", "tiny", "webdataset", options={"shard_samples": 2}),
        )
        (ours.folder / INDEX).write_bytes((tmp_path / "theirs" / INDEX).read_bytes())
        path = ours.data_files()[0]
        assert complaint(ours.folder) == f"{path}: sample 0: 'cat/a' is not the one that the index names"


class TestManifest:
    @pytest.mark.parametrize(("name", "count"), each_once(IMAGE_FORMATS, [5, 7, 0, -6]))
    def test_another_number_of_samples(self, small: Callable[[str], Dataset], name: str, count: int) -> None:
        folder = small(name).folder
        edit_manifest(folder, num_samples=count)
        assert complaint(folder) == f"{folder}: the manifest says {count} samples, the index 6"

    @every_format
    def test_another_dataset_id(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_manifest(folder, dataset_id="0" * 32)
        assert complaint(folder) == f"{folder}: the samples' dataset_id is not the manifest's {'0' * 32}"

    @every_format
    def test_another_number_of_bytes(self, small: Callable[[str], Dataset], name: str) -> None:
        dataset = small(name)
        edit_manifest(dataset.folder, stored_bytes=1)
        assert complaint(dataset.folder).endswith(f"{dataset.manifest.stored_bytes} bytes stored, the manifest says 1")

    @every_format
    def test_other_fields(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_manifest(folder, fields=[{"name": "image", "dtype": "jpeg"}])
        assert "has fields ['image', 'label']" in complaint(folder)

    @every_format
    def test_too_few_classes(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_manifest(folder, num_classes=1)
        assert str(folder) in complaint(folder)

    @every_format
    def test_another_format(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_manifest(folder, format="hdf5" if name == "files" else "files")
        assert str(folder) in complaint(folder)

    @every_format
    def test_a_format_that_does_not_exist(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_manifest(folder, format="zarr")
        assert "'zarr'" in complaint(folder)

    @every_format_and_mask
    @few_or_every_offset
    def test_a_flipped_byte_never_ends_in_a_traceback(
        self, small: Callable[[str], Dataset], name: str, mask: int, step: int
    ) -> None:
        """Some flips (time stamps) rightly do not matter."""
        path = small(name).folder / MANIFEST
        whole = path.read_bytes()
        offsets, found = range(0, len(whole), step), 0
        for offset in offsets:
            flip(path, offset, mask)
            try:
                verify_dataset(path.parent)
            except DatasetError as error:
                found += 1
                assert "\n" not in str(error), offset
            path.write_bytes(whole)
        assert found > len(offsets) // 4


class TestIndex:
    @every_format
    def test_another_label(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_index(folder, "label", 2, 9)
        assert str(folder) in complaint(folder)

    @every_format
    def test_another_key(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_index(folder, "key", 2, b"cat/x")
        assert str(folder) in complaint(folder)

    @every_format
    def test_another_digest(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_index(folder, "digest", 2, b"0" * 32)
        assert "its checksum is not the index's" in complaint(folder)

    @every_format
    def test_other_stored_bytes(self, small: Callable[[str], Dataset], name: str) -> None:
        folder = small(name).folder
        edit_index(folder, "bytes", 2, 1)
        assert str(folder) in complaint(folder)

    @every_format
    def test_another_file(self, small: Callable[[str], Dataset], name: str) -> None:
        dataset = small(name)
        edit_index(dataset.folder, "file", 2, b"x")
        assert str(dataset.folder) in complaint(dataset.folder)

    @every_format_and_mask
    @few_or_every_offset
    def test_a_flipped_byte_is_always_found(
        self, small: Callable[[str], Dataset], name: str, mask: int, step: int
    ) -> None:
        """All of the header and of two rows; only a flip in the header's padding may pass."""
        dataset = small(name)
        path = dataset.folder / INDEX
        whole = path.read_bytes()
        header = len(whole) - dataset.index.nbytes
        row = dataset.index.itemsize
        for offset in [*range(0, header + row, step), *range(len(whole) - row, len(whole), step)]:
            flip(path, offset, mask)
            if offset >= header:
                assert str(dataset.folder) in complaint(dataset.folder), offset
            else:
                try:
                    verify_dataset(dataset.folder)
                except DatasetError as error:
                    assert str(dataset.folder) in str(error), offset
            path.write_bytes(whole)


class TestSameSamples:
    def test_in_two_formats(self, small: Callable[[str], Dataset]) -> None:
        same_samples(verify_dataset(small("files").folder), verify_dataset(small("webdataset").folder))

    def test_the_first_difference_is_named(self, small: Callable[[str], Dataset], class_folder: Path) -> None:
        first = small("files")
        (class_folder / "dog" / "a.jpg").write_bytes(jpeg(77))
        second = small("webdataset")
        with pytest.raises(DatasetError, match=f"{first.folder} and {second.folder} differ, first at sample 'dog/a'"):
            same_samples(first, second)

    def test_a_sample_that_only_one_has_is_named(self, small: Callable[[str], Dataset], class_folder: Path) -> None:
        first = small("files")
        (class_folder / "cat" / "aa.jpg").write_bytes(jpeg(77))
        second = small("webdataset")
        for pair in ((first, second), (second, first)):
            with pytest.raises(DatasetError, match="first at sample 'cat/aa'"):
                same_samples(*pair)

    def how(self, class_folder: Path, small: Callable[[str], Dataset], change: Callable[[], object]) -> str:
        first = small("files")
        change()
        with pytest.raises(DatasetError) as caught:
            same_samples(first, small("webdataset"))
        return str(caught.value).rpartition(": ")[2]

    def test_it_is_said_how_they_differ(self, small: Callable[[str], Dataset], class_folder: Path) -> None:
        dog = class_folder / "dog"

        def change() -> None:
            (dog / "a.jpg").write_bytes(jpeg(77))
            (dog / "new.jpg").write_bytes(jpeg(78))
            (class_folder / "cat" / "a.jpg").unlink()

        found = self.how(class_folder, small, change)
        assert found == "1 only in the first, 1 only in the second, 1 with other content"

    def test_the_same_contents_under_other_names(self, small: Callable[[str], Dataset], class_folder: Path) -> None:
        (image,) = (class_folder / "dog").glob("a.jpg")
        found = self.how(class_folder, small, lambda: image.rename(image.with_name("z.jpg")))
        assert found == "the same contents under other names"

    def test_other_labels(self, small: Callable[[str], Dataset], class_folder: Path) -> None:
        """A class before the others moves all labels on by one."""

        def change() -> None:
            (class_folder / "ant").mkdir()
            (class_folder / "ant" / "a.jpg").write_bytes(jpeg(79))

        assert self.how(class_folder, small, change) == "1 only in the second, 6 with other labels"


@pytest.mark.parametrize("target", ["files", "lmdb", "webdataset", "hdf5"])
def test_what_was_compressed_verifies_in_every_other_format(tmp_path: Path, target: str) -> None:
    params = {"patch_size": 16, "mean_bytes": 60_000, "stdev_bytes": 10_000}
    wanted = Wanted("unet3d", "tiny", "hdf5", "volume", params, {"compression": "gzip"})
    generate_dataset(tmp_path / "gz", wanted, 3)
    convert_dataset(tmp_path / "gz", tmp_path / "to", Wanted("unet3d", "tiny", target, "volume", params))
    first, second = verify_dataset(tmp_path / "gz"), verify_dataset(tmp_path / "to")
    same_samples(first, second)
    assert second.manifest.stored_bytes > 1.5 * first.manifest.stored_bytes


def test_a_shard_that_the_manifest_leaves_out_is_noticed(made: Made) -> None:
    dataset = made("webdataset", "image")
    path = dataset.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    left_out = next(info for info in manifest["files"] if info["num_samples"])
    manifest["files"].remove(left_out)
    path.write_text(json.dumps(manifest))
    try:
        with pytest.raises(DatasetError, match="the manifest's files hold 23 samples, the index 26"):
            open_dataset(dataset.folder)
    finally:
        manifest["files"].insert(0, left_out)
        path.write_text(json.dumps(manifest))
