"""Lazy copies: made file by file as they are read, once, checked, and without the source from then on."""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import DatasetError, ReaderShare, is_dataset
from benchsuite.storage.dataset.partial import partial_folder
from benchsuite.storage.dataset.sample import Recycled, fresh
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.staging import copy as copying
from benchsuite.storage.staging.lazy import Fetch, open_lazily
from benchsuite.storage.staging.stage import stage
from tests.storage.conftest import Made
from tests.storage.samples import STORED, digests, facts, some_samples
from tests.storage.staged import Replaced, finished, hidden, inodes, wait_until

COUNT = 26
ONE_PER_FORMAT = sorted(dict(reversed(STORED)).items())


class TestLazy:
    @pytest.mark.parametrize(("name", "kind"), STORED)
    def test_the_same_samples_and_no_file_twice(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
    ) -> None:
        source, form = made(name, kind), load(FORMATS, name)
        copied: Counter[str] = Counter()
        monkeypatch.setattr("benchsuite.storage.staging.lazy.copy_file", counting(copied))
        lazy = open_lazily(source, tmp_path / "copy")
        for epoch in range(2):
            for allocate in (fresh, Recycled()):
                share = ReaderShare(0, 1, epoch, 0, True, 5, allocate)
                read = {sample.key: facts(sample) for sample in form.read(lazy, share)}
                assert read == {sample.key: facts(sample) for sample in some_samples(COUNT, kind)}
        assert set(copied.values()) == {1}
        listed = {str(path.relative_to(source.folder)) for path in source.data_files()}
        assert {*copied} - {"index.npy"} <= listed
        assert not is_dataset(tmp_path / "copy")
        for path in finished(tmp_path / "copy"):
            relative = path.relative_to(tmp_path / "copy")
            assert path.read_bytes() == (source.folder / relative).read_bytes()

    @pytest.mark.parametrize(("name", "kind"), ONE_PER_FORMAT)
    def test_the_second_epoch_needs_no_source(self, mine: Made, tmp_path: Path, name: str, kind: str) -> None:
        source = mine(name, kind)
        wanted = digests(list(in_order(source)))
        lazy = open_lazily(source, tmp_path / "copy")
        assert digests(list(in_order(lazy))) == wanted
        shutil.rmtree(source.folder)
        assert digests(list(in_order(lazy))) == wanted

    def test_only_what_is_read_is_copied(self, made: Made, tmp_path: Path) -> None:
        lazy = open_lazily(made("files", "image"), tmp_path / "copy")
        reader = load(FORMATS, "files").read(lazy, ReaderShare(0, 1, 0, 0, False, 1))
        next(reader)
        assert len(finished(tmp_path / "copy")) == 2  # with the index

    @pytest.mark.parametrize(("name", "kind"), ONE_PER_FORMAT)
    def test_a_byte_changed_on_the_way_is_refused(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
    ) -> None:
        lazy = open_lazily(made(name, kind), tmp_path / "copy")

        def damaging(target: int, content: memoryview, place: int) -> int:
            damaged = bytearray(content)
            damaged[len(damaged) // 2] ^= 1
            return os.pwrite(target, damaged, place)

        monkeypatch.setattr(copying, "os", Replaced(pwrite=damaging))
        with pytest.raises(DatasetError):
            list(in_order(lazy))
        monkeypatch.undo()
        assert digests(list(in_order(lazy))) == digests(some_samples(COUNT, kind))

    def test_an_index_changed_on_the_way_is_refused(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def damaging(target: int, content: memoryview, place: int) -> int:
            return os.pwrite(target, bytes(content[:-1]) + b"\x7f", place)

        monkeypatch.setattr(copying, "os", Replaced(pwrite=damaging))
        source = made("webdataset", "image")
        with pytest.raises(DatasetError, match="checksum"):
            open_lazily(source, tmp_path / "copy")
        with pytest.raises(DatasetError, match="checksum"):
            stage(source.folder, tmp_path / "other")
        assert not (tmp_path / "other").exists()
        assert not (tmp_path / "copy" / "index.npy").exists()

    def test_many_who_want_one_file_copy_it_once(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = made("hdf5", "image")
        copied: Counter[str] = Counter()
        monkeypatch.setattr("benchsuite.storage.staging.lazy.copy_file", counting(copied, 0.05))
        answers: list[bool] = []
        threads = [
            threading.Thread(target=lambda: answers.append(Fetch(source, tmp_path / "copy")("samples.h5")))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert copied == {"samples.h5": 1}
        assert sorted(answers) == [False] * 5 + [True]
        assert finished(tmp_path / "copy") == [tmp_path / "copy" / "samples.h5"]
        assert hidden(tmp_path / "copy") == []

    def test_who_is_killed_while_copying_leaves_it_to_others(self, made: Made, tmp_path: Path) -> None:
        source = made("hdf5", "image")
        child = os.fork()
        if child == 0:
            copying.SourceFile.copy = lambda *arguments: time.sleep(600)  # type: ignore[method-assign]
            Fetch(source, tmp_path / "copy")("samples.h5")
            os._exit(1)
        wait_until(lambda: (tmp_path / "copy" / ".samples.h5.copy").exists())
        time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert Fetch(source, tmp_path / "copy")("samples.h5")
        assert (tmp_path / "copy" / "samples.h5").read_bytes() == (source.folder / "samples.h5").read_bytes()

    def test_names_that_lead_out_are_refused(self, made: Made, tmp_path: Path) -> None:
        fetch = Fetch(made("files", "image"), tmp_path / "copy")
        for name in ("../x", "/etc/passwd"):
            with pytest.raises(DatasetError, match="leads out of the dataset"):
                fetch(name)

    def test_staging_makes_a_lazy_copy_whole(self, made: Made, tmp_path: Path) -> None:
        source = made("webdataset", "image")
        lazy = open_lazily(source, partial_folder(tmp_path / "copy"))
        next(load(FORMATS, "webdataset").read(lazy, ReaderShare(0, 1, 0, 0, False, 1)))
        kept = inodes(finished(lazy.folder))
        staged = stage(source.folder, tmp_path / "copy")
        assert staged.copied_bytes < staged.num_bytes
        assert kept["shard-000000.tar"] == inodes(finished(tmp_path / "copy"))["shard-000000.tar"]
        verify_dataset(tmp_path / "copy")


def counting(copied: Counter[str], seconds: float = 0.0) -> Callable[..., bool]:
    def copy(wanted: copying.FileCopy, *arguments: Any) -> bool:
        name = str(wanted.source)
        copied[name[name.index(wanted.target.name) :] if wanted.target.parent.name == "copy" else relative(wanted)] += 1
        time.sleep(seconds)
        return copying.copy_file(wanted, *arguments)

    return copy


def relative(wanted: copying.FileCopy) -> str:
    """A file's name within the dataset: what source and target have in common at their ends."""
    parts = zip(reversed(wanted.source.parts), reversed(wanted.target.parts), strict=False)
    common = []
    for one, other in parts:
        if one != other:
            break
        common.append(one)
    return "/".join(reversed(common))
