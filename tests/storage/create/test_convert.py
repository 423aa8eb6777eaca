"""Datasets made from folders of JPEGs and from one another, and what is refused."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import simplejpeg

from benchsuite.storage import FORMATS
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, IndexRow, Sample, is_dataset, open_dataset
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from benchsuite.storage.formats import files
from benchsuite.storage.sources import sample_key
from tests.helpers.snapshots import compare_messages
from tests.helpers.turns import each_once
from tests.storage.conftest import Made
from tests.storage.samples import IMAGE_FORMATS, PARAMS, STORED, contents, jpeg, small_shards, some_samples

every_format = pytest.mark.parametrize("name", IMAGE_FORMATS)


def to(name: str, source: Path, target: Path) -> Dataset:
    convert_dataset(source, target, Wanted("resnet50", "tiny", name, options=small_shards(name)))
    return open_dataset(target)


def flat_folder(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    for name, content in files.items():
        (folder / f"{name}.jpg").write_bytes(content)
    return folder


def refusal(source: Path, target: Path, name: str = "files") -> str:
    """The one line that a conversion is refused with; nothing may be left of its target."""
    before = sorted(target.parent.iterdir())
    with pytest.raises(DatasetError) as raised:
        to(name, source, target)
    assert "\n" not in str(raised.value)
    assert sorted(target.parent.iterdir()) == before
    return str(raised.value)


@every_format
def test_flat_folder(tmp_path: Path, name: str) -> None:
    dataset = to(name, flat_folder(tmp_path / "flat"), tmp_path / "set")
    assert contents(dataset) == {str(number): (jpeg(number), 0) for number in range(3)}
    assert dataset.manifest.num_classes == 1


@every_format
def test_one_folder_per_class(tmp_path: Path, class_folder: Path, name: str) -> None:
    (class_folder / "notes.txt").write_text("not an image")
    (class_folder / ".hidden").mkdir()
    (class_folder / ".hidden" / "x.jpg").write_bytes(jpeg(99))
    dataset = to(name, class_folder, tmp_path / "set")
    assert contents(dataset) == {
        "cat/a": (jpeg(0), 0),
        "cat/b_c": (jpeg(1), 0),
        "cat/d_v1": (jpeg(2), 0),
        "dog/a": (jpeg(3), 1),
        "dog/é": (jpeg(4), 1),
        "dog/deep/er": (jpeg(5), 1),
    }
    manifest = dataset.manifest
    assert (manifest.num_samples, manifest.num_classes, manifest.format) == (6, 2, name)
    assert (manifest.workload, manifest.variant, manifest.kind) == ("resnet50", "tiny", "image")
    assert {field.name: field.dtype for field in manifest.fields} == {"image": "jpeg", "label": "int64"}
    assert manifest.created["how"] == "convert"
    assert manifest.created["source"] == str(class_folder)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("a.jpg", "a"),
        ("n01440764/n01440764_18.JPEG", "n01440764/n01440764_18"),
        ("v1.5/my photo.old.jpeg", "v1_5/my_photo_old"),
        ("tab\tnew\nline.jpg", "tab_new_line"),
        ("a..jpg", "a_"),
        (".dotted.jpg", "_dotted"),
        ("é.jpg", "é"),
    ],
)
def test_keys(path: str, key: str) -> None:
    assert sample_key(Path(path)) == key


@pytest.mark.parametrize(
    ("name", "names"),
    each_once(IMAGE_FORMATS, [("a.b.jpg", "a_b.jpg"), ("a b.jpg", "a_b.jpg"), ("a.jpg", "a.JPEG")]),
)
def test_two_files_with_one_key_are_refused(tmp_path: Path, name: str, names: tuple[str, str]) -> None:
    folder = flat_folder(tmp_path / "flat")
    for file in names:
        (folder / file).write_bytes(jpeg(7))
    message = refusal(folder, tmp_path / "set", name)
    assert "another file has the same key 'a" in message
    assert any(message.startswith(f"{folder / file}: ") for file in names)


@pytest.mark.parametrize(
    ("name", "content"), each_once(IMAGE_FORMATS, [b"", b"hello", jpeg(8)[:30], jpeg(8)[:-400], jpeg(8)[:-2]])
)
def test_what_is_not_a_whole_jpeg_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = flat_folder(tmp_path / "flat", zz=content)
    assert refusal(folder, tmp_path / "set", name).startswith(f"{folder / 'zz.jpg'}: not a whole JPEG: ")


@pytest.mark.parametrize("tail", [b"\0" * 37, b"\n", b"trailing words"])
def test_what_cameras_append_is_kept(tmp_path: Path, tail: bytes) -> None:
    dataset = to("files", flat_folder(tmp_path / "flat", zz=jpeg(8) + tail), tmp_path / "set")
    assert contents(dataset)["zz"] == (jpeg(8) + tail, 0)


def test_grey_and_cmyk_files_are_kept_as_they_are(tmp_path: Path) -> None:
    import numpy as np

    grey = simplejpeg.encode_jpeg(np.full((16, 16, 1), 77, np.uint8), colorspace="GRAY", colorsubsampling="Gray")
    cmyk = simplejpeg.encode_jpeg(np.full((16, 16, 4), 77, np.uint8), colorspace="CMYK")
    dataset = to("files", flat_folder(tmp_path / "flat", grey=grey, cmyk=cmyk), tmp_path / "set")
    assert contents(dataset)["grey"][0] == grey
    assert contents(dataset)["cmyk"][0] == cmyk


def test_a_damaged_dataset_is_refused_as_a_source(tmp_path: Path, small: Callable[[str], Dataset]) -> None:
    dataset = small("files")
    victim = dataset.data_files()[2]
    victim.unlink()
    assert refusal(dataset.folder, tmp_path / "set", "webdataset").startswith(f"{victim}: ")


def test_folders_that_are_refused(tmp_path: Path, class_folder: Path) -> None:
    """One stray JPEG beside the class folders, too: it must not silently become the whole dataset."""
    cases: dict[str, Callable[[Path], object]] = {
        "a folder named like a JPEG": lambda folder: (folder / "z.jpg").mkdir(),
        "a link to nowhere": lambda folder: (folder / "gone.jpg").symlink_to("/nowhere.jpg"),
        "a name that is not Unicode": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jpg")).touch(),
        "classes beside an image": lambda folder: shutil.copytree(class_folder, folder, dirs_exist_ok=True),
    }

    def message(make: Callable[[Path], object]) -> str:
        folder = flat_folder(tmp_path / str(len(list(tmp_path.iterdir()))))
        make(folder)
        return refusal(folder, tmp_path / "set").replace(str(folder), "FOLDER")

    compare_messages("image_folders", cases, message)


class TestSourceAndTargetInsideOneAnother:
    @pytest.mark.parametrize("inside", ["set", "cat/set", "cat/deep/set"])
    def test_a_target_inside_the_source(self, tmp_path: Path, class_folder: Path, inside: str) -> None:
        (tmp_path / "link").symlink_to(class_folder)
        for target in (class_folder / inside, tmp_path / "link" / inside):
            with pytest.raises(DatasetError, match=f"^{target}: lies inside the source {class_folder}; give a folder"):
                to("files", class_folder, target)
        assert not list(class_folder.rglob("*set*"))

    def test_a_target_inside_a_dataset(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        with pytest.raises(DatasetError, match="lies inside the source"):
            to("lmdb", dataset.folder, dataset.folder / "lmdb")
        verify_dataset(dataset.folder)

    def test_a_target_that_is_the_source(self, class_folder: Path) -> None:
        assert (
            refusal(class_folder, class_folder) == f"{class_folder}: source and target are the same; give a new folder"
        )

    def test_a_target_that_holds_the_source(self, tmp_path: Path, class_folder: Path) -> None:
        message = refusal(class_folder, tmp_path)
        assert message == f"{tmp_path}: holds the source {class_folder}; give a new folder"

    def test_neighbours_with_like_names_are_fine(self, tmp_path: Path, class_folder: Path) -> None:
        assert len(to("files", class_folder, tmp_path / "jpegs-set").index) == 6


class TestRefusals:
    def test_options_that_a_format_does_not_know(self, tmp_path: Path, class_folder: Path) -> None:
        cases = [
            ("hdf6", {}),
            ("files", {"shard_samples": 3}),
            ("files", {"array": "npx"}),
            ("hdf5", {"compression": "zip"}),
            ("webdataset", {"shard_samples": "many"}),
            ("lmdb", {"pages": 3}),
            ("files", {"array": "npz"}),
        ]

        def message(name: str, options: dict[str, int | str]) -> str:
            with pytest.raises(DatasetError) as raised:
                convert_dataset(class_folder, tmp_path / "set", Wanted("resnet50", "tiny", name, options=options))
            assert not (tmp_path / "set").exists()
            return str(raised.value)

        compare_messages("format_options", cases, message)

    def test_samples_of_another_kind(self, tmp_path: Path, made: Made) -> None:
        with pytest.raises(DatasetError, match="holds mlm samples, not volume"):
            convert_dataset(
                made("files", "mlm").folder, tmp_path / "set", Wanted("unet3d", "tiny", "lmdb", kind="volume")
            )

    @pytest.mark.parametrize("changed", [{"seq_len": 16}, {"max_predictions": 4}])
    def test_sequences_of_another_length(self, tmp_path: Path, made: Made, changed: dict[str, int]) -> None:
        params = {**PARAMS["mlm"], **changed}
        with pytest.raises(DatasetError, match=f"{next(iter(changed))} is"):
            convert_dataset(
                made("files", "mlm").folder, tmp_path / "set", Wanted("bert", "tiny", "lmdb", kind="mlm", params=params)
            )


@every_format
def test_an_existing_target_is_refused_and_kept(tmp_path: Path, class_folder: Path, name: str) -> None:
    first = to(name, class_folder, tmp_path / "set")
    assert "exists already" in refusal(class_folder, tmp_path / "set", name)
    verify_dataset(first.folder)


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, class_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(path.stat().st_size for path in class_folder.rglob("*.*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total - 1))
    assert "B free" in refusal(class_folder, tmp_path / "set")
    dataset = tmp_path / "whole"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    to("files", class_folder, dataset)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total - 1))
    assert "B free" in refusal(dataset, tmp_path / "set", "webdataset")
    with pytest.raises(DatasetError, match=r"\d [KMG]B free"):
        generate_dataset(tmp_path / "set", Wanted("resnet50", "tiny", "files"), 10, num_workers=1)


@pytest.mark.parametrize(("name", "kind"), [pair for pair in STORED if pair[0] != "files"])
def test_there_and_back(tmp_path: Path, made: Made, name: str, kind: str) -> None:
    sets = [made("files", kind)]
    for target, form in (("there", name), ("back", "files")):
        convert_dataset(
            sets[-1].folder,
            tmp_path / target,
            Wanted("any", "tiny", form, kind=kind, params=PARAMS[kind], options=small_shards(form)),
        )
        sets.append(verify_dataset(tmp_path / target))
    assert len({dataset.manifest.dataset_id for dataset in sets}) == 1
    for dataset in sets[1:]:
        same_samples(sets[0], dataset)
        for column in ("key", "digest", "label", "bytes"):
            assert dataset.index[column].tolist() == sets[0].index[column].tolist()
        assert dataset.manifest.stored_bytes == sets[0].manifest.stored_bytes
        assert dataset.manifest.params == sets[0].manifest.params
    assert [info.digest for info in sets[2].manifest.files] == [info.digest for info in sets[0].manifest.files]


@pytest.mark.parametrize("kind", sorted(PARAMS))
def test_all_formats_of_one_dataset_verify_against_each_other(made: Made, kind: str) -> None:
    sets = [verify_dataset(made(name, kind).folder) for name, stored in STORED if stored == kind]
    assert len(sets) >= 5
    for first in sets:
        for second in sets:
            same_samples(first, second)
    other = verify_dataset(made("files", kind, None, 6).folder)
    with pytest.raises(DatasetError, match="differ, first at sample"):
        same_samples(sets[0], other)


def test_the_smallest_extent_of_volumes_is_noted(made: Made) -> None:
    """So that a patch that does not fit is refused before a sweep starts."""
    smallest = min(min(sample.fields["image"].shape[1:]) for sample in some_samples(26, "volume"))
    assert made("hdf5", "volume").manifest.params["min_extent"] == smallest


def test_progress_counts_up_to_all(tmp_path: Path, class_folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_dataset(
        class_folder,
        tmp_path / "set",
        Wanted("resnet50", "tiny", "files"),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(done, 6) for done in range(1, 7)]


class TestInterruption:
    @pytest.mark.parametrize(
        ("name", "error", "when"), each_once(IMAGE_FORMATS, [RuntimeError, KeyboardInterrupt], [1, 3, 6])
    )
    def test_while_writing_leaves_nothing(
        self, tmp_path: Path, class_folder: Path, name: str, error: type[BaseException], when: int
    ) -> None:
        def stop(done: int, total: int) -> None:
            if done == when:
                raise error

        (tmp_path / "out").mkdir()
        with pytest.raises(error):
            convert_dataset(class_folder, tmp_path / "out" / "set", Wanted("resnet50", "tiny", name), progress=stop)
        assert list((tmp_path / "out").iterdir()) == []

    def test_before_the_manifest_is_whole_leaves_nothing(
        self, tmp_path: Path, class_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(path: Path) -> None:
            if path.name == "manifest.json":
                raise KeyboardInterrupt

        monkeypatch.setattr("benchsuite.storage.dataset.manifest.fsync_path", stop)
        (tmp_path / "out").mkdir()
        with pytest.raises(KeyboardInterrupt):
            convert_dataset(class_folder, tmp_path / "out" / "set", Wanted("resnet50", "tiny", "files"))
        assert list((tmp_path / "out").iterdir()) == []

    @every_format
    def test_by_sigkill_leaves_nothing_that_passes_for_a_dataset(
        self, tmp_path: Path, class_folder: Path, name: str
    ) -> None:
        code = """if True:
            import sys, time
            from pathlib import Path
            from benchsuite.storage.create.convert import Wanted, convert_dataset

            def wait(done, total):
                if done == 5:
                    print("five", flush=True)
                    time.sleep(600)

            wanted = Wanted("resnet50", "tiny", sys.argv[3])
            convert_dataset(Path(sys.argv[1]), Path(sys.argv[2]), wanted, progress=wait)
        """
        target = tmp_path / "out" / "set"
        with subprocess.Popen(
            [sys.executable, "-c", code, str(class_folder), str(target), name], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == "five\n"
            child.send_signal(signal.SIGKILL)
            assert child.wait(30) == -signal.SIGKILL
        assert not target.exists()
        for folder in [target.parent, *target.parent.rglob("*")]:
            assert not is_dataset(folder)
        with pytest.raises(DatasetError, match="no such folder"):
            open_dataset(target)
        (left,) = target.parent.iterdir()
        to(name, class_folder, target)
        assert len(contents(verify_dataset(target))) == 6
        assert not left.exists()
        assert list(target.parent.iterdir()) == [target]


def test_files_beside_those_of_the_samples_are_listed_and_checked(
    dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
        yield from files.FILES.write(folder, samples)
        (folder / "side.bin").write_bytes(b"what a format needs to find its samples")

    with monkeypatch.context() as patched:
        patched.setitem(FORMATS, "files", ("tests.storage.create.test_convert:BESIDE", ""))
        patched.setitem(globals(), "BESIDE", dataclasses.replace(files.FILES, write=write))
        manifest = convert_dataset(dataset_root / "webdataset", tmp_path / "set", Wanted("resnet50", "tiny", "files"))
    assert [info.path for info in manifest.files] == ["side.bin"]
    dataset = verify_dataset(tmp_path / "set")
    assert dataset.folder / "side.bin" in dataset.data_files()
    assert len(dataset.data_files()) == 1 + len(dataset.index)
    (tmp_path / "set" / "side.bin").write_bytes(b"something else that is just as long...")
    with pytest.raises(DatasetError, match=r"side\.bin"):
        verify_dataset(tmp_path / "set")
