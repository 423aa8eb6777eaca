"""Digests, orders, manifests and the folder that appears only when it is whole."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from blake3 import blake3

from benchsuite.storage.dataset.manifest import (
    INDEX,
    MANIFEST,
    Dataset,
    DatasetError,
    ReaderShare,
    Sample,
    content_digest,
    data_file,
    dataset_id,
    dealt,
    file_digest,
    index_row,
    inside,
    is_dataset,
    new_dataset,
    open_dataset,
    order,
    read_manifest,
)
from benchsuite.storage.dataset.sample import Recycled, fresh, read_at, read_whole
from tests.planted import open_umask

__all__ = ["open_umask"]


def one_line(call: Callable[[], object]) -> str:
    """The message of the DatasetError that a call ends with."""
    with pytest.raises(DatasetError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


class TestDigests:
    def test_of_a_sample_depends_on_every_name_and_byte(self) -> None:
        fields = [
            {"image": b"abc", "label": b"1"},
            {"image": b"abd", "label": b"1"},
            {"image": b"abc", "label": b"2"},
            {"image": b"ab", "label": b"c1"},
            {"image": b"1", "label": b"abc"},
            {"image": b"abc"},
            {"image": b"abc", "label": b""},
            {"imag": b"abc", "label": b"1"},
        ]
        assert len({content_digest(Sample("k", some)) for some in fields}) == len(fields)

    def test_of_a_sample_does_not_depend_on_where_it_lies(self) -> None:
        first = Sample("a", {"image": b"x", "label": b"1"}, 3, "/here")
        second = Sample("b", {"label": b"1", "image": b"x"}, 4, "/there")
        assert content_digest(first) == content_digest(second)

    def test_of_a_dataset_does_not_depend_on_order(self) -> None:
        rows = [("b", "2"), ("a", "1"), ("c", "3")]
        assert dataset_id(rows) == dataset_id(sorted(rows)) == dataset_id(reversed(rows))

    def test_of_a_dataset_depends_on_keys_contents_and_their_pairing(self) -> None:
        others = [
            [("a", "1"), ("b", "2")],
            [("a", "2"), ("b", "1")],
            [("a", "1"), ("c", "2")],
            [("a", "1")],
            [("a", "1"), ("b", "2"), ("b", "2")],
        ]
        assert len({dataset_id(rows) for rows in others}) == len(others)

    def test_of_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_bytes(b"x" * 100_000)
        (tmp_path / "two").write_bytes(b"x" * 99_999 + b"y")
        assert file_digest(tmp_path / "one") != file_digest(tmp_path / "two")
        assert file_digest(tmp_path / "one") == f"blake3:{blake3(b'x' * 100_000).hexdigest(16)}"
        old = hashlib.blake2b(b"x" * 100_000, digest_size=16).hexdigest()
        assert file_digest(tmp_path / "one", like=old) == old

    def test_of_a_file_from_a_byte_on(self, tmp_path: Path) -> None:
        """For files whose beginning is written last."""
        content, turned = b"abc" * 5000, tmp_path / "turned"
        turned.write_bytes(content)
        like = "blake3-from-8192:"
        assert file_digest(turned, like) == f"{like}{blake3(content[8192:] + content[:8192]).hexdigest(16)}"
        assert file_digest(turned, "blake3-from-90000:") == f"blake3-from-90000:{blake3(content).hexdigest(16)}"
        turned.write_bytes(content[:8192])
        assert file_digest(turned, like) == f"{like}{blake3(content[:8192]).hexdigest(16)}"

    def test_of_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert file_digest(tmp_path / "empty") == f"blake3:{blake3(b'').hexdigest(16)}"
        like = "blake3-from-8192:"
        assert file_digest(tmp_path / "empty", like) == f"{like}{blake3(b'').hexdigest(16)}"

    def test_of_an_array_depends_on_name_dtype_shape_and_values(self) -> None:
        zeros = np.zeros((2, 3), np.float32)
        others = [
            {"image": zeros},
            {"label": zeros},
            {"image": zeros.astype(np.int32)},
            {"image": zeros.reshape(3, 2)},
            {"image": zeros + 1},
            {"image": zeros.tobytes()},
            {"image": zeros[0]},
            {"image": np.zeros((), np.float32)},
        ]
        assert len({content_digest(Sample("k", some)) for some in others}) == len(others)

    def test_of_an_array_does_not_depend_on_how_it_lies_in_memory(self) -> None:
        values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        lying = [values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]]
        assert len({content_digest(Sample("k", {"image": some})) for some in lying}) == 1

    def test_that_is_known_is_not_computed_again(self) -> None:
        assert content_digest(Sample("k", {"image": b"x"}, digest="known")) == "known"

    def test_index_row_counts_all_fields(self) -> None:
        row = index_row(Sample("k", {"image": b"12345", "label": b"17"}), "there")
        assert (row.key, row.file, row.bytes, row.label) == ("k", "there", 7, 17)


class TestOrder:
    @pytest.mark.parametrize("count", [1, 7, 100])
    def test_is_a_permutation(self, count: int) -> None:
        assert sorted(order(count, ReaderShare(0, 1, 2, 3, True, 1))) == list(range(count))

    def test_changes_with_seed_and_epoch_but_not_with_the_reader(self) -> None:
        def made(index: int = 0, count: int = 1, epoch: int = 0, seed: int = 0) -> list[int]:
            return order(50, ReaderShare(index, count, epoch, seed, True, 1)).tolist()

        assert made() == made(index=3, count=4)
        assert len({tuple(made(epoch=epoch, seed=seed)) for epoch in range(3) for seed in range(3)}) == 9

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_lanes_are_dealt_like_cards(self, count: int) -> None:
        shares = [dealt(23, ReaderShare(index, count, 1, 0, True, 1)).tolist() for index in range(count)]
        assert sorted(row for share in shares for row in share) == list(range(23))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


class TestDataFile:
    def test_one_of_another_size_is_told_with_both(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("webdataset")
        path = dataset.data_files()[0]
        size = path.stat().st_size
        assert data_file(dataset, path.name) == path
        os.truncate(path, 100)
        message = one_line(lambda: data_file(dataset, path.name))
        assert message == f"{path}: 100 bytes, the manifest says {size}: truncated or changed"

    def test_a_missing_one_is_named(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("webdataset")
        assert one_line(lambda: data_file(dataset, "gone")) == f"{dataset.folder / 'gone'}: No such file or directory"


class TestReadWhole:
    def test_fills_memory_that_is_used_again(self, tmp_path: Path) -> None:
        memory = Recycled()
        for content in (b"first content", b"second", b"", b"the third and longest content of all"):
            (tmp_path / "file").write_bytes(content)
            assert read_whole(tmp_path / "file", "x", memory).tobytes() == content

    def test_recycled_memory_grows_and_stays(self) -> None:
        memory = Recycled()
        first = memory("a", 1000)
        assert memory("a", 900) is first and memory("a", 10) is first
        assert memory("b", 900) is not first
        assert len(memory("a", 5000)) >= 5000

    def test_fresh_memory_is_that_of_one_sample(self) -> None:
        assert fresh("a", 10) is not fresh("a", 10)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        message = one_line(lambda: read_whole(tmp_path / "gone", "x", fresh))
        assert message == f"{tmp_path / 'gone'}: No such file or directory"

    def test_a_folder_is_named(self, tmp_path: Path) -> None:
        assert str(tmp_path) in one_line(lambda: read_whole(tmp_path, "x", fresh))

    def test_one_that_ends_too_early_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1234567")
        with (tmp_path / "file").open("rb") as file:
            message = one_line(lambda: read_at(file.fileno(), 3, fresh("x", 10), tmp_path / "file"))
        assert message == f"{tmp_path / 'file'}: ends at byte 7, 6 bytes short: truncated"


class TestInside:
    def test_joins(self) -> None:
        assert inside(Path("/set"), "a/b..c.jpg") == Path("/set/a/b..c.jpg")

    @pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", ".."])
    def test_refuses_what_leads_out(self, name: str) -> None:
        assert one_line(lambda: inside(Path("/set"), name)) == f"/set: {name!r} leads out of the dataset"


class TestNewDataset:
    def test_nobody_else_may_write_it_while_it_is_made(self, tmp_path: Path, open_umask: None):
        """The names of files in the making are foreseeable: a link in their place would be written through."""
        with new_dataset(tmp_path / "set", 10) as partial:
            assert partial.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "set").stat().st_mode & 0o777 == 0o777 and not [*(tmp_path / "set").iterdir()]

    def test_appears_when_whole(self, tmp_path: Path) -> None:
        with new_dataset(tmp_path / "deep" / "set", 10) as partial:
            (partial / "x").write_bytes(b"1")
            assert not (tmp_path / "deep" / "set").exists()
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["set"]
        assert (tmp_path / "deep" / "set" / "x").read_bytes() == b"1"

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, DatasetError, SystemExit])
    def test_leaves_nothing_when_interrupted(self, tmp_path: Path, error: type[BaseException]) -> None:
        with pytest.raises(error), new_dataset(tmp_path / "set", 10) as partial:
            (partial / "x").write_bytes(b"1")
            raise error
        assert list(tmp_path.iterdir()) == []

    def test_says_in_one_line_that_the_disk_filled_up(self, tmp_path: Path) -> None:
        def fill() -> None:
            with new_dataset(tmp_path / "set", 10):
                raise OSError(28, os.strerror(28))

        assert one_line(fill) == f"{tmp_path / 'set'}: No space left on device; nothing was kept"
        assert list(tmp_path.iterdir()) == []

    def test_refuses_a_target_that_holds_something(self, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "mine").write_text("precious")
        (tmp_path / "file").write_text("precious")
        for name in ("set", "file"):
            message = one_line(lambda name=name: new_dataset(tmp_path / name, 0).__enter__())
            assert message.startswith(f"{tmp_path / name}: exists already")
        assert (tmp_path / "set" / "mine").read_text() == "precious"

    def test_accepts_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        with new_dataset(tmp_path / "set", 0) as partial:
            (partial / "x").touch()
        assert (tmp_path / "set" / "x").exists()

    def test_keeps_what_someone_else_put_there_meanwhile(self, tmp_path: Path) -> None:
        def race() -> None:
            with new_dataset(tmp_path / "set", 0):
                (tmp_path / "set").mkdir()
                (tmp_path / "set" / "theirs").touch()

        assert str(tmp_path / "set") in one_line(race)
        assert [path.name for path in tmp_path.rglob("*")] == ["set", "theirs"]

    def test_refuses_a_disk_too_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000_000_000))
        message = one_line(lambda: new_dataset(tmp_path / "set", 3_000_000_000).__enter__())
        assert message == f"{tmp_path / 'set'}: needs 3 GB, its disk has 2 GB free"
        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_the_way_is_said_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert str(tmp_path / "file") in one_line(lambda: new_dataset(tmp_path / "file" / "set", 0).__enter__())

    def test_the_current_folder_may_be_the_target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with new_dataset(Path("."), 0) as partial:
            (partial / "x").touch()
        assert [path.name for path in (tmp_path / "here").iterdir()] == ["x"]


class TestManifest:
    def test_no_folder(self, tmp_path: Path) -> None:
        message = one_line(lambda: read_manifest(tmp_path / "none"))
        assert message.startswith(f"{tmp_path / 'none'}: not a dataset: no such folder; make one with: benchsuite data")

    def test_no_manifest(self, tmp_path: Path) -> None:
        assert "no manifest.json in it" in one_line(lambda: read_manifest(tmp_path))
        assert not is_dataset(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"num_samples": "many"}', "\x00\xff"])
    def test_what_is_no_manifest(self, tmp_path: Path, text: str) -> None:
        (tmp_path / MANIFEST).write_text(text)
        assert one_line(lambda: read_manifest(tmp_path)).startswith(f"{tmp_path / MANIFEST}: ")

    def test_a_missing_field_is_named(self, small: Callable[[str], Dataset]) -> None:
        folder = small("files").folder
        text = (folder / MANIFEST).read_text()
        (folder / MANIFEST).write_text(text.replace('"dataset_id"', '"other_id"'))
        assert one_line(lambda: read_manifest(folder)) == f"{folder / MANIFEST}: dataset_id: Field required"

    def test_one_of_a_later_version_is_refused(self, small: Callable[[str], Dataset]) -> None:
        folder = small("files").folder
        text = (folder / MANIFEST).read_text()
        (folder / MANIFEST).write_text(text.replace('"schema_version": 1', '"schema_version": 2'))
        assert one_line(lambda: read_manifest(folder)).endswith("schema_version 2; this version reads up to 1")

    def test_fields_added_later_do_no_harm(self, small: Callable[[str], Dataset]) -> None:
        folder = small("webdataset").folder
        before = read_manifest(folder)
        text = (folder / MANIFEST).read_text()
        text = text.replace('"schema_version"', '"added": {"later": [1]}, "schema_version"')
        (folder / MANIFEST).write_text(text.replace('"path"', '"added": 1, "path"'))
        assert read_manifest(folder) == before

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / MANIFEST).mkdir()
        assert str(tmp_path / MANIFEST) in one_line(lambda: read_manifest(tmp_path))


class TestIndex:
    def test_is_mapped_not_read(self, small: Callable[[str], Dataset]) -> None:
        assert isinstance(small("files").index.base, np.memmap)

    @pytest.mark.parametrize(
        "content",
        [b"", b"\x93NUMPY", b"garbage" * 50, b"PK\x05\x06" + b"\0" * 18],
        ids=["empty", "cut in the header", "text", "zip"],
    )
    def test_garbage_is_refused(self, small: Callable[[str], Dataset], content: bytes) -> None:
        folder = small("files").folder
        (folder / INDEX).write_bytes(content)
        assert str(folder / INDEX) in one_line(lambda: open_dataset(folder))

    def test_a_missing_one_is_named(self, small: Callable[[str], Dataset]) -> None:
        folder = small("files").folder
        (folder / INDEX).unlink()
        assert str(folder / INDEX) in one_line(lambda: open_dataset(folder))

    @pytest.mark.parametrize(
        "descr",
        ["|O", [("key", "|O"), ("file", "|S9"), ("digest", "|S32"), ("bytes", "<i8"), ("label", "<i8")]],
        ids=["rows", "a column"],
    )
    def test_python_objects_are_refused(self, small: Callable[[str], Dataset], descr: object) -> None:
        """Reading them would run code that the file brings along."""
        folder = small("files").folder
        with (folder / INDEX).open("wb") as file:
            header = {"descr": descr, "fortran_order": False, "shape": (6,)}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(b"." * 6 * 89)
        assert "Python objects" in one_line(lambda: open_dataset(folder))

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros(6),
            np.zeros(6, dtype=[("key", "S9"), ("file", "S9")]),
            np.zeros(6, dtype=[(name, "<i8") for name in ("key", "file", "digest", "bytes", "label")]),
            np.zeros(6, dtype=[(name, "S8") for name in ("key", "file", "digest", "bytes", "label")]),
            np.zeros((), dtype=[(name, "S8") for name in ("key", "file", "digest", "bytes", "label")]),
        ],
        ids=["numbers", "two columns", "no texts", "no numbers", "no rows"],
    )
    def test_other_arrays_are_refused(self, small: Callable[[str], Dataset], array: np.ndarray) -> None:
        folder = small("files").folder
        np.save(folder / INDEX, array)
        assert str(folder / INDEX) in one_line(lambda: open_dataset(folder))

    def test_one_cut_short_is_refused(self, small: Callable[[str], Dataset]) -> None:
        folder = small("files").folder
        os.truncate(folder / INDEX, (folder / INDEX).stat().st_size - 1)
        assert str(folder / INDEX) in one_line(lambda: open_dataset(folder))

    def test_one_of_another_length_is_refused(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        np.save(dataset.folder / INDEX, np.array(dataset.index[:5]))
        assert one_line(lambda: open_dataset(dataset.folder)).endswith("the manifest says 6 samples, the index 5")
