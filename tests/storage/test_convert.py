"""Datasets made from folders of JPEGs and from one another, and what is refused."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import simplejpeg

from storage import FORMATS, files, generate
from storage.convert import convert_dataset, generate_dataset, sample_key
from storage.format import Dataset, DatasetError, IndexRow, Sample, is_dataset, open_dataset, read_manifest
from storage.verify import same_samples, verify_dataset
from tests.storage.samples import contents, jpeg

every_format = pytest.mark.parametrize("name", sorted(FORMATS))


def to(name: str, source: Path, target: Path) -> Dataset:
    options = {"shard_samples": 2} if name == "webdataset" else {}
    convert_dataset(source, target, "resnet50", "tiny", name, options)
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


@pytest.mark.parametrize("names", [("a.b.jpg", "a_b.jpg"), ("a b.jpg", "a_b.jpg"), ("a.jpg", "a.JPEG")])
@every_format
def test_two_files_with_one_key_are_refused(tmp_path: Path, name: str, names: tuple[str, str]) -> None:
    folder = flat_folder(tmp_path / "flat")
    for file in names:
        (folder / file).write_bytes(jpeg(7))
    message = refusal(folder, tmp_path / "set", name)
    assert "another file has the same key 'a" in message
    assert any(message.startswith(f"{folder / file}: ") for file in names)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 200, b"hello", jpeg(8)[:30], jpeg(8)[:-400], jpeg(8)[:-2]],
    ids=["empty", "png", "text", "cut in the header", "cut in the image", "cut before the end mark"],
)
@every_format
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


class TestSourcesThatAreRefused:
    def test_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "empty" / "class").mkdir(parents=True)
        (tmp_path / "empty" / "class" / "x.png").touch()
        assert refusal(tmp_path / "empty", tmp_path / "set").startswith(f"{tmp_path / 'empty'}: no .jpg or .jpeg files")

    def test_no_folder(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "none", tmp_path / "set") == f"{tmp_path / 'none'}: No such file or directory"

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file.tar").touch()
        assert refusal(tmp_path / "file.tar", tmp_path / "set") == f"{tmp_path / 'file.tar'}: Not a directory"

    def test_a_folder_named_like_a_jpeg(self, tmp_path: Path) -> None:
        folder = flat_folder(tmp_path / "flat")
        (folder / "z.jpg").mkdir()
        assert refusal(folder, tmp_path / "set").startswith(f"{folder / 'z.jpg'}: ")

    def test_a_link_to_nowhere(self, tmp_path: Path) -> None:
        folder = flat_folder(tmp_path / "flat")
        (folder / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
        assert refusal(folder, tmp_path / "set").startswith(f"{folder / 'gone.jpg'}: ")

    def test_a_name_that_is_not_unicode(self, tmp_path: Path) -> None:
        folder = flat_folder(tmp_path / "flat")
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jpg")).write_bytes(jpeg(1))
        assert str(folder) in refusal(folder, tmp_path / "set")

    def test_a_folder_both_flat_and_in_classes(self, tmp_path: Path, class_folder: Path) -> None:
        """One stray JPEG beside the class folders must not silently become the whole dataset."""
        (class_folder / "stray.jpg").write_bytes(jpeg(9))
        assert str(class_folder) in refusal(class_folder, tmp_path / "set")

    def test_a_damaged_dataset(self, tmp_path: Path, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        victim = dataset.data_files()[2]
        victim.unlink()
        assert refusal(dataset.folder, tmp_path / "set", "webdataset").startswith(f"{victim}: ")

    def test_a_format_that_is_not_there(self, tmp_path: Path, class_folder: Path) -> None:
        assert "'hdf6'" in refusal(class_folder, tmp_path / "set", "hdf6")


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
    assert "GB free" in refusal(class_folder, tmp_path / "set")
    dataset = tmp_path / "whole"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    to("files", class_folder, dataset)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total - 1))
    assert "GB free" in refusal(dataset, tmp_path / "set", "webdataset")
    with pytest.raises(DatasetError, match="GB free"):
        generate_dataset(tmp_path / "set", "resnet50", "tiny", "files", 10, num_processes=1)


@pytest.mark.parametrize(("first", "second"), [("files", "webdataset"), ("webdataset", "files")])
def test_there_and_back(tmp_path: Path, class_folder: Path, first: str, second: str) -> None:
    sets = [to(first, class_folder, tmp_path / "1")]
    sets.append(to(second, tmp_path / "1", tmp_path / "2"))
    sets.append(to(first, tmp_path / "2", tmp_path / "3"))
    assert len({dataset.manifest.dataset_id for dataset in sets}) == 1
    assert contents(sets[0]) == contents(sets[1]) == contents(sets[2])
    for dataset in sets:
        verify_dataset(dataset.folder)
        same_samples(sets[0], dataset)
        assert dataset.index["label"].tolist() == sets[0].index["label"].tolist()
        assert dataset.index["key"].tolist() == sets[0].index["key"].tolist()
        assert dataset.manifest.stored_bytes == sets[0].manifest.stored_bytes


def test_progress_counts_up_to_all(tmp_path: Path, class_folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_dataset(
        class_folder,
        tmp_path / "set",
        "resnet50",
        "tiny",
        "files",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(done, 6) for done in range(1, 7)]


class TestInterruption:
    @every_format
    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("when", [1, 3, 6])
    def test_while_writing_leaves_nothing(
        self, tmp_path: Path, class_folder: Path, name: str, error: type[BaseException], when: int
    ) -> None:
        def stop(done: int, total: int) -> None:
            if done == when:
                raise error

        (tmp_path / "out").mkdir()
        with pytest.raises(error):
            convert_dataset(class_folder, tmp_path / "out" / "set", "resnet50", "tiny", name, progress=stop)
        assert list((tmp_path / "out").iterdir()) == []

    def test_before_the_manifest_is_whole_leaves_nothing(
        self, tmp_path: Path, class_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(path: Path) -> None:
            if path.name == "manifest.json":
                raise KeyboardInterrupt

        monkeypatch.setattr("storage.format.fsync_path", stop)
        (tmp_path / "out").mkdir()
        with pytest.raises(KeyboardInterrupt):
            convert_dataset(class_folder, tmp_path / "out" / "set", "resnet50", "tiny", "files")
        assert list((tmp_path / "out").iterdir()) == []

    @every_format
    def test_by_sigkill_leaves_nothing_that_passes_for_a_dataset(
        self, tmp_path: Path, class_folder: Path, name: str
    ) -> None:
        code = """if True:
            import sys, time
            from pathlib import Path
            from storage.convert import convert_dataset

            def wait(done, total):
                if done == 5:
                    print("five", flush=True)
                    time.sleep(600)

            options = {"shard_samples": 2} if sys.argv[3] == "webdataset" else {}
            convert_dataset(Path(sys.argv[1]), Path(sys.argv[2]), "resnet50", "tiny", sys.argv[3], options, wait)
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
        to(name, class_folder, target)
        assert len(contents(verify_dataset(target))) == 6


def slow_sample(log: str, seed: int, index: int, num_classes: int) -> Sample:
    """Stands for a photograph; notes that it was made."""
    with open(log, "a") as file:
        file.write(f"{index}\n")
    time.sleep(0.002)
    return Sample(f"{index:08d}", {"image": jpeg(index % 10), "label": b"0"})


def test_an_interrupted_generation_does_not_make_the_rest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or a full disk at sample 1 of a million must not wait for the other 999,999."""
    log = tmp_path / "log"
    monkeypatch.setattr(generate, "image_sample", partial(slow_sample, str(log)))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_dataset(tmp_path / "set", "resnet50", "tiny", "files", 3000, progress=stop, num_processes=1)
    assert len(log.read_text().splitlines()) < 1500


def test_a_killed_generation_leaves_no_processes(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from storage.convert import generate_dataset

        if __name__ == "__main__":
            progress = lambda done, total: print("one", flush=True)
            generate_dataset(Path(sys.argv[1]), "resnet50", "tiny", "files", 2000, progress=progress, num_processes=2)
    """
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "set")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"one\n"
        workers = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    _, left = psutil.wait_procs(workers, timeout=10)
    for worker in left:
        worker.kill()
    assert len(workers) >= 2
    assert left == []
    assert not (tmp_path / "set").exists()


class TestGenerated:
    def test_it_does_not_depend_on_processes_or_format_but_on_the_seed(self, tmp_path: Path) -> None:
        def made(name: str, form: str, seed: int, processes: int) -> Dataset:
            generate_dataset(tmp_path / name, "resnet50", "tiny", form, 6, seed, num_processes=processes)
            return verify_dataset(tmp_path / name)

        one, two, other = made("1", "files", 4, 1), made("2", "webdataset", 4, 2), made("3", "files", 5, 2)
        assert contents(one) == contents(two)
        assert one.manifest.dataset_id == two.manifest.dataset_id != other.manifest.dataset_id
        expected = [generate.image_sample(4, index, 2) for index in range(6)]
        assert contents(one) == {
            sample.key: (sample.fields["image"], int(sample.fields["label"])) for sample in expected
        }

    def test_the_manifest_says_how(self, dataset_root: Path) -> None:
        manifest = read_manifest(dataset_root / "files")
        assert (manifest.created["how"], manifest.created["seed"]) == ("generate", 3)
        assert verify_dataset(dataset_root / "webdataset").manifest.dataset_id == manifest.dataset_id

    def test_no_samples_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError):
            generate_dataset(tmp_path / "set", "resnet50", "tiny", "files", 0, num_processes=1)
        assert not (tmp_path / "set").exists()


def test_files_beside_those_of_the_samples_are_listed_and_checked(
    dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
        yield from files.FILES.write(folder, samples)
        (folder / "side.bin").write_bytes(b"what a format needs to find its samples")

    with monkeypatch.context() as patched:
        patched.setitem(FORMATS, "files", ("tests.storage.test_convert:BESIDE", ""))
        patched.setitem(globals(), "BESIDE", dataclasses.replace(files.FILES, write=write))
        manifest = convert_dataset(dataset_root / "webdataset", tmp_path / "set", "resnet50", "tiny", "files")
    assert [info.path for info in manifest.files] == ["side.bin"]
    dataset = verify_dataset(tmp_path / "set")
    assert dataset.folder / "side.bin" in dataset.data_files()
    assert len(dataset.data_files()) == 1 + len(dataset.index)
    (tmp_path / "set" / "side.bin").write_bytes(b"something else that is just as long...")
    with pytest.raises(DatasetError, match=r"side\.bin"):
        verify_dataset(tmp_path / "set")
