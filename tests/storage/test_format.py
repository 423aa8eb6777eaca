"""Digests, orders, manifests and the folder that appears only when it is whole."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from storage.format import (
    INDEX,
    MANIFEST,
    Dataset,
    DatasetError,
    Lane,
    Sample,
    content_digest,
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

    def test_index_row_counts_all_fields(self) -> None:
        row = index_row(Sample("k", {"image": b"12345", "label": b"17"}), "there")
        assert (row.key, row.file, row.bytes, row.label) == ("k", "there", 7, 17)


class TestOrder:
    @pytest.mark.parametrize("count", [1, 7, 100])
    def test_is_a_permutation(self, count: int) -> None:
        assert sorted(order(count, Lane(0, 1, 2, 3, True, 1))) == list(range(count))

    def test_changes_with_seed_and_epoch_but_not_with_the_reader(self) -> None:
        def made(index: int = 0, count: int = 1, epoch: int = 0, seed: int = 0) -> list[int]:
            return order(50, Lane(index, count, epoch, seed, True, 1)).tolist()

        assert made() == made(index=3, count=4)
        assert len({tuple(made(epoch=epoch, seed=seed)) for epoch in range(3) for seed in range(3)}) == 9

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_lanes_are_dealt_like_cards(self, count: int) -> None:
        shares = [dealt(23, Lane(index, count, 1, 0, True, 1)).tolist() for index in range(count)]
        assert sorted(row for share in shares for row in share) == list(range(23))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


class TestInside:
    def test_joins(self) -> None:
        assert inside(Path("/set"), "a/b..c.jpg") == Path("/set/a/b..c.jpg")

    @pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", ".."])
    def test_refuses_what_leads_out(self, name: str) -> None:
        assert one_line(lambda: inside(Path("/set"), name)) == f"/set: {name!r} leads out of the dataset"


class TestNewDataset:
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
        assert message == f"{tmp_path / 'set'}: needs 3.00 GB, its disk has 2.00 GB free"
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
        assert isinstance(small("files").index, np.memmap)

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
