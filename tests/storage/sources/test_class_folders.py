"""Which folders are classes: of folders, of tars as they are packed from folders, and of keys."""

import tarfile
from pathlib import Path

import lmdb
import pytest

from benchsuite.storage.sources.classes import classes_of
from tests.storage.samples import jpeg
from tests.storage.sources.made import images, refusal, tar

PARTS = "are parts of a dataset, not classes: "


def written(root: Path, *names: str) -> Path:
    """A folder with these JPEGs, or empty folders where a name ends with a slash."""
    for number, name in enumerate(names):
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(jpeg(number))
    return root


def packed(folder: Path, *inside: str) -> Path:
    """A tar of a folder as `tar cf` makes it: folders are members too."""
    path = folder.with_name("packed.tar")
    with tarfile.open(path, "w") as archive:
        for name in inside:
            archive.add(folder / name, name if name == "." else f"{folder.name}/{name}".rstrip("/."))
    return path


def labels(source: Path) -> dict[str, int]:
    return {key: label for key, (_, label) in images(source).items()}


@pytest.mark.parametrize(
    ("folders", "depth", "names"),
    [
        ([], 0, []),
        ([""], 0, []),
        (["cat", "dog"], 0, ["cat", "dog"]),
        (["cat", "dog", ""], 0, ["cat", "dog"]),
        (["cat", "cat/deep", "dog/deep"], 0, ["cat", "dog"]),
        (["photos/cat", "photos/dog"], 1, ["cat", "dog"]),
        (["a/b/cat/1", "a/b/dog"], 2, ["cat", "dog"]),
        (["photos", "photos/cat"], 0, ["photos"]),
        (["cat"], 0, ["cat"]),
        (["./photos//cat", "photos/dog/"], 1, ["cat", "dog"]),
    ],
)
def test_classes_are_the_first_folders_that_differ(folders: list[str], depth: int, names: list[str]) -> None:
    found = classes_of(folders)
    assert (found.depth, found.numbers) == (depth, {name: number for number, name in enumerate(names)})
    for folder in folders:
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        assert found.of(f"{folder}/1.jpg") == (names.index(parts[depth]) if len(parts) > depth else 0)


class TestFolders:
    def test_one_that_holds_the_class_folders_is_told(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "photos/cat/1.jpg", "photos/dog/1.jpg")
        assert refusal(source, "resnet50") == (
            f"{source}: all images lie in photos/, whose folders are the classes: give {source / 'photos'}"
        )
        assert labels(source / "photos") == {"cat/1": 0, "dog/1": 1}

    def test_one_class_with_folders_below_it(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "cat/deep/1.jpg", "cat/2.jpg")
        assert labels(source) == {"cat/deep/1": 0, "cat/2": 0}

    @pytest.mark.parametrize("parts", [["train", "val"], ["Test", "train", "validation"]])
    def test_parts_of_a_dataset_are_no_classes(self, tmp_path: Path, parts: list[str]) -> None:
        names = [f"{part}/{name}" for part in parts for name in ("cat/1.jpg", "dog/1.jpg")]
        source = written(tmp_path / "in", *names)
        assert refusal(source, "resnet50") == f"{source}: {', '.join(parts)} {PARTS}give one, as {source / parts[0]}"

    def test_a_class_that_is_called_train(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "bus/1.jpg", "train/1.jpg")
        assert labels(source) == {"bus/1": 0, "train/1": 1}


class TestTars:
    @pytest.mark.parametrize("inside", [".", ""])
    def test_of_a_folder_has_its_classes(self, tmp_path: Path, inside: str) -> None:
        """`cd photos; tar cf ../photos.tar .`, and `tar cf photos.tar photos`."""
        source = packed(written(tmp_path / "photos", "cat/1.jpg", "dog/1.jpg", "emu/deep/1.jpg"), inside)
        above = "" if inside == "." else "photos/"
        assert labels(source) == {f"{above}cat/1": 0, f"{above}dog/1": 1, f"{above}emu/deep/1": 2}

    @pytest.mark.parametrize("inside", [".", ""])
    def test_an_empty_class_folder_is_refused(self, tmp_path: Path, inside: str) -> None:
        """Else the classes after it would have other numbers than where it was packed."""
        source = packed(written(tmp_path / "photos", "cat/1.jpg", "dog/", "emu/deep/1.jpg"), inside)
        name = "dog" if inside == "." else "photos/dog"
        assert refusal(source, "resnet50") == (
            f"{source}: {name}/: a class folder without images; classes are numbered by folders: add images, or remove "
            "it"
        )

    def test_one_in_another_shard_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        packed(written(tmp_path / "a", "cat/1.jpg", "dog/"), ".").rename(tmp_path / "in" / "1.tar")
        packed(written(tmp_path / "b", "dog/1.jpg", "cat/"), ".").rename(tmp_path / "in" / "2.tar")
        assert labels(tmp_path / "in") == {"cat/1": 0, "dog/1": 1}

    @pytest.mark.parametrize("beside", [("1.cls", b"3"), ("1.json", b'{"label": 3}')])
    def test_folders_are_no_classes_where_others_say_them(self, tmp_path: Path, beside: tuple[str, bytes]) -> None:
        source = tar(tmp_path / "a.tar", [("val/1.jpg", jpeg(1)), (f"val/{beside[0]}", beside[1])])
        with tarfile.open(source, "a") as archive:
            archive.addfile(_folder("empty"))
        assert labels(source) == {"val/1": 3}

    def test_beside_flat_images_and_hidden_folders_are_none(self, tmp_path: Path) -> None:
        source = tar(tmp_path / "a.tar", [("1.jpg", jpeg(1))])
        other = tar(tmp_path / "b.tar", [("cat/1.jpg", jpeg(1)), ("dog/1.jpg", jpeg(1))])
        for path, name in ((source, "docs"), (other, ".cache")):
            with tarfile.open(path, "a") as archive:
                archive.addfile(_folder(name))
        assert labels(source) == {"1": 0}
        assert labels(other) == {"cat/1": 0, "dog/1": 1}

    def test_an_image_in_no_folder_is_of_no_class(self, tmp_path: Path) -> None:
        """It would be counted to the first class."""
        message = "images both in no folder and in folders (cat/)"
        source = tar(tmp_path / "a.tar", [("cat/1.jpg", jpeg(1)), ("dog/1.jpg", jpeg(1)), ("2.jpg", jpeg(2))])
        assert refusal(source, "resnet50") == f"{source}: {message}"
        entries = mdb(tmp_path / "in", "cat/1.jpg", "dog/1.jpg", "2.jpg")
        assert refusal(entries, "resnet50") == f"{entries / 'data.mdb'}: {message}"

    @pytest.mark.parametrize("above", ["", "imagenet/"])
    def test_parts_of_a_dataset_are_no_classes(self, tmp_path: Path, above: str) -> None:
        source = tar(tmp_path / "a.tar", [(f"{above}{part}/cat/1.jpg", jpeg(1)) for part in ("train", "val")])
        assert refusal(source, "resnet50") == f"{source}: train, val {PARTS}pack each by itself"


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def mdb(folder: Path, *keys: str) -> Path:
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as entries:
        for key in keys:
            entries.put(key.encode(), jpeg(1))
    return folder


class TestLmdb:
    @pytest.mark.parametrize("above", ["", "photos/"])
    def test_keys_name_classes_below_what_is_common(self, tmp_path: Path, above: str) -> None:
        source = mdb(tmp_path / "in", *(f"{above}{name}.jpg" for name in ("cat/1", "dog/1", "dog/deep/2")))
        assert labels(source) == {f"{above}cat/1": 0, f"{above}dog/1": 1, f"{above}dog/deep/2": 1}

    def test_parts_of_a_dataset_are_no_classes(self, tmp_path: Path) -> None:
        source = mdb(tmp_path / "in", "train/cat/1.jpg", "val/cat/1.jpg")
        assert refusal(source, "resnet50") == f"{source / 'data.mdb'}: train, val {PARTS}store each by itself"
