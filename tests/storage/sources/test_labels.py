"""Labels that are there are used, or the conversion stops and says where it looked."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import DatasetError, open_dataset
from benchsuite.storage.sources import ReadOptions
from tests.helpers.snapshots import compare_messages
from tests.storage.samples import jpeg
from tests.storage.sources.made import images, png, refusal, tar
from tests.storage.sources.test_class_folders import mdb

COUNT = 4
HOW_TO_CHOOSE = "give --label-field NAME, or --label-field none where none of them is the class"


def laid(how: str, root: Path, members: dict[str, bytes]) -> Path:
    """The same names and contents as files of a folder, or as members of a tar."""
    if how == "tar":
        return tar(root / "in.tar", list(members.items()))
    for name, content in members.items():
        path = root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root / "in"


def beside(extension: str, contents: list[bytes], folder: str = "") -> dict[str, bytes]:
    """Images, and after all of them what belongs to each."""
    photos = {f"{folder}{number}.jpg": jpeg(number) for number in range(len(contents))}
    return photos | {f"{folder}{number}.{extension}": content for number, content in enumerate(contents)}


def said(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def labels(source: Path, label_field: str | None = None) -> dict[str, int]:
    target = source.parent / "set"
    convert_dataset(source, target, Wanted("resnet50", "tiny", "files"), options=ReadOptions(label_field=label_field))
    return {sample.key: int(bytes(sample.fields["label"])) for sample in in_order(open_dataset(target))}


def where(source: Path, name: str) -> str:
    return f"{source}: sample '{name}'" if source.suffix == ".tar" else f"{source / name}.jpg"


each_layout = pytest.mark.parametrize("how", ["tar", "folder"])


@each_layout
class TestBesideImages:
    @pytest.mark.parametrize(
        ("extension", "contents"),
        [
            ("cls", [b"3", b"0\n", b"7", b"1"]),
            ("json", [said(label=3), said(label=0), said(label=7, width=9), said(label=1)]),
            ("json", [said(id=number, **{"class": label}) for number, label in enumerate((3, 0, 7, 1))]),
            ("json", [said(cls=str(label), label=f"name of {label}") for label in (3, 0, 7, 1)]),
            ("txt", [b"3", b"0\n", b"7", b" 1 "]),
        ],
    )
    @pytest.mark.parametrize("folder", ["", "photos/"])
    def test_a_class_is_used(self, tmp_path: Path, how: str, extension: str, contents: list[bytes], folder: str):
        """Members of a sample that do not follow one another are found, too."""
        source = laid(how, tmp_path, beside(extension, contents, folder))
        assert list(labels(source).values()) == [3, 0, 7, 1]

    def test_they_come_before_folders(self, tmp_path: Path, how: str) -> None:
        source = laid(how, tmp_path, {"a/1.jpg": jpeg(1), "a/1.cls": b"5", "b/2.jpg": jpeg(2), "b/2.cls": b"5"})
        assert labels(source) == {"a/1": 5, "b/2": 5}

    def test_fields_that_are_no_class_leave_folders_in_their_place(self, tmp_path: Path, how: str) -> None:
        members = {"a/1.jpg": jpeg(1), "b/2.jpg": jpeg(2), "a/1.json": said(caption="cat"), "b/2.txt": b"a dog"}
        assert labels(laid(how, tmp_path, members)) == {"a/1": 0, "b/2": 1}

    def test_one_that_is_not_understood_stops(self, tmp_path: Path, how: str) -> None:
        cases = {
            "other numbers": ("json", said(class_id=3, width=500)),
            "two that differ": ("json", said(label=3, cls=4)),
            "text": ("json", said(label="cat")),
            "a nested one": ("json", said(meta={"label": 3})),
            "text in .txt": ("txt", b"cat"),
            "text in .cls": ("cls", b"cat"),
        }

        def message(extension: str, content: bytes) -> str:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            source = laid(how, folder, beside(extension, [content] * COUNT))
            message = refusal(source, "resnet50")
            assert message.startswith(f"{where(source, '0')}: ")
            return message.removeprefix(f"{where(source, '0')}: ")

        compare_messages("labels_beside_images", cases, message)

    def test_one_that_is_missing_stops(self, tmp_path: Path, how: str) -> None:
        source = laid(how, tmp_path, {"0.jpg": jpeg(0), "1.jpg": jpeg(1), "1.json": said(label=2)})
        assert refusal(source, "resnet50") == f"{where(source, '0')}: no label; others have label in .json"

    def test_the_field_is_chosen(self, tmp_path: Path, how: str) -> None:
        contents = [said(class_id=number, width=500, label=9) for number in range(COUNT)]
        source = laid(how, tmp_path, beside("json", contents))
        assert labels(source, "class_id") == {str(number): number for number in range(COUNT)}

    def test_a_field_that_is_not_there_stops(self, tmp_path: Path, how: str) -> None:
        source = laid(how, tmp_path, beside("json", [said(class_id=1, width=500)]))
        with pytest.raises(DatasetError) as raised:
            labels(source, "clas_id")
        assert str(raised.value) == f"{where(source, '0')}: its .json has no field 'clas_id'; found class_id, width"

    @pytest.mark.parametrize("extension", ["json", "txt", "cls"])
    def test_none_of_them_is_a_class_where_the_user_says_so(self, tmp_path: Path, how: str, extension: str) -> None:
        source = laid(how, tmp_path, beside(extension, [said(id=1, width=2)] * 2))
        assert labels(source, "none") == {"0": 0, "1": 0}

    @pytest.mark.parametrize("name", ["labels.csv", "val.txt", "meta/1.json", "Annotations/0.xml", "0.xml"])
    def test_files_that_may_hold_labels_stop_where_none_are_found(self, tmp_path: Path, how: str, name: str) -> None:
        source = laid(how, tmp_path, {"photos/0.jpg": jpeg(0), f"photos/{name}": b"1"})
        assert refusal(source, "resnet50") == (
            f"{source}: no labels found: looked for .cls, .json and .txt of each image's name, and for a folder per "
            f"class; photos/{name} may hold labels and is not read: make a folder per class, or give --label-field "
            "none if no labels are meant"
        )
        assert labels(source, "none") == {"photos/0": 0}

    def test_notes_do_not(self, tmp_path: Path, how: str) -> None:
        source = laid(how, tmp_path, {"0.jpg": jpeg(0), "README.txt": b"words", "LICENSE": b"words", "0.md": b"words"})
        assert labels(source) == {"0": 0}


class TestTars:
    @pytest.mark.parametrize("form", ["files", "webdataset", "hdf5"])
    def test_one_that_is_not_sorted_is_read(self, tmp_path: Path, form: str) -> None:
        """Members of all samples in any order: by extension as `tar cf a.tar *.jpg *.cls` packs them, or mixed."""
        members = [(f"{number}.jpg", jpeg(number)) for number in range(20)]
        members += [(f"{number}.cls", str(number % 7).encode()) for number in reversed(range(20))]
        expected = {str(number): (jpeg(number), number % 7) for number in range(20)}
        result = images(tar(tmp_path / "a.tar", members), form)
        assert result == expected and list(result) == list(expected)

    def test_a_label_beside_another_tar_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        tar(tmp_path / "in" / "a.tar", [("0.jpg", jpeg(0))])
        (tmp_path / "in" / "labels.csv").write_text("0,1")
        assert "labels.csv may hold labels and is not read" in refusal(tmp_path / "in", "resnet50")

    def test_shards_may_have_the_same_keys(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for number, name in enumerate(("train-0", "train.1")):
            tar(tmp_path / "in" / f"{name}.tar", [("00.jpg", jpeg(number)), ("00.cls", str(number).encode())])
        expected = {"train-0/00": (jpeg(0), 0), "train_1/00": (jpeg(1), 1)}
        for form in ("files", "webdataset"):
            assert images(tmp_path / "in", form) == expected

    def test_keys_of_their_own_stay_as_they_are(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for number in range(2):
            tar(tmp_path / "in" / f"{number}.tar", [(f"{number}.jpg", jpeg(number))])
        assert list(images(tmp_path / "in")) == ["0", "1"]


def test_a_label_beside_an_lmdb_is_told(tmp_path: Path) -> None:
    source = mdb(tmp_path / "in", "0.jpg", "1.jpg")
    (source / "labels.txt").write_text("0 1")
    assert "labels.txt may hold labels and is not read" in refusal(source, "resnet50")


def test_the_option_is_for_images_alone(tmp_path: Path) -> None:
    source = mdb(tmp_path / "in", "0.jpg")
    with pytest.raises(DatasetError, match=r"holds data.mdb; --label-field id is for .json beside images"):
        labels(source, "id")
    made = tmp_path / "in-files-set"
    images(source)
    with pytest.raises(DatasetError, match=r"a dataset, which has its labels; leave out --label-field id"):
        labels(made, "id")


HIDDEN = (
    ".ipynb_checkpoints/0-checkpoint.jpg",
    "cat/.ipynb_checkpoints/0-checkpoint.jpg",
    "cat/._0.jpg",
    "__MACOSX/cat/._0.jpg",
    "cat/deep/.trash/0.jpg",
    "cat/@eaDir/0.jpg",
    "Thumbs.db",
    "cat/desktop.ini",
    "cat/0.jpg~",
    "dog/#0.jpg#",
    "dog/0.jpg.bak",
)


class TestHidden:
    """What desktops, notebooks and editors leave is no sample, no class and no damage; it is counted."""

    def members(self) -> dict[str, bytes]:
        return {"cat/0.jpg": jpeg(0), "dog/0.jpg": jpeg(1)} | {
            name: jpeg(9) if "checkpoint" in name else b"\0\5\x16\7" for name in HIDDEN
        }

    @each_layout
    def test_in_folders_and_tars(self, tmp_path: Path, how: str) -> None:
        source = laid(how, tmp_path, self.members())
        assert images(source) == {"cat/0": (jpeg(0), 0), "dog/0": (jpeg(1), 1)}
        made = open_dataset(tmp_path / f"{source.name}-files-set")
        assert made.manifest.created["hidden_files"] == len(HIDDEN)

    def test_a_folder_of_them_in_a_tar_is_no_class(self, tmp_path: Path) -> None:
        source = laid("folder", tmp_path, {"cat/0.jpg": jpeg(0), "__MACOSX/cat/._0.jpg": b"\0\5\x16\7"})
        with tarfile.open(tmp_path / "b.tar", "w") as archive:
            archive.add(source, ".")
        assert images(tmp_path / "b.tar") == {"cat/0": (jpeg(0), 0)}

    def test_in_an_lmdb(self, tmp_path: Path) -> None:
        source = mdb(tmp_path / "in", "cat/0.jpg", "__MACOSX/0.jpg", "cat/.ipynb_checkpoints/0.jpg")
        assert images(source) == {"cat/0": (jpeg(1), 0)}

    def test_a_backup_is_not_read_beside_the_tars(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for name in ("a.tar", "._b.tar", "#c.tar"):
            tar(tmp_path / "in" / name, [(f"{len(name)}.jpg", png(0))])
        (tmp_path / "in" / "#c.tar").rename(tmp_path / "in" / "#c.tar#")
        assert list(images(tmp_path / "in")) == ["5"]

    def test_a_folder_that_is_hidden_itself_is_read(self, tmp_path: Path) -> None:
        source = laid("folder", tmp_path / ".cache", {"cat/0.jpg": jpeg(0)})
        assert images(source) == {"cat/0": (jpeg(0), 0)}
