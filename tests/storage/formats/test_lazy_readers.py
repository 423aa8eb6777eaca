"""Lazy copies that many processes fill at once: what has its own name is what the dataset says, whoever looks when."""

import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import INDEX, DatasetError, ReaderShare
from benchsuite.storage.formats import files
from benchsuite.storage.staging import copy as copying
from benchsuite.storage.staging import lazy as lazily
from benchsuite.storage.staging.lazy import Fetch, open_lazily
from tests.storage.conftest import Made
from tests.storage.samples import digests, some_samples
from tests.storage.staged import Replaced, finished

COUNT = 26
WORKERS = 4


def in_child(work: Callable[[], object]) -> int:
    """How a forked process that does this ends: 0, or 1 where it raises."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestForkedWorkers:
    def test_each_copies_its_own_bytes(self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All have read before any writes, and the process that they were forked from has copied before."""
        source, copy = made("files", "image"), tmp_path / "copy"
        names = [str(path.relative_to(source.folder)) for path in source.data_files()]
        first, names = names[0], names[1 : 1 + len(names[1:]) // WORKERS * WORKERS]
        fetch = Fetch(source, copy)
        fetch(first)
        meeting = get_context("fork").Barrier(WORKERS)

        def reading(*arguments: Any) -> int:
            count = os.preadv(*arguments)
            meeting.wait(60)
            return count

        monkeypatch.setattr(copying, "os", Replaced(preadv=reading))
        children = [in_child(lambda number=number: [*map(fetch, names[number::WORKERS])]) for number in range(WORKERS)]
        assert [ended(child) for child in children] == [0] * WORKERS
        wrong = [name for name in names if (copy / name).read_bytes() != (source.folder / name).read_bytes()]
        assert wrong == []

    def test_each_reads_the_samples_of_its_lane(self, made: Made, tmp_path: Path) -> None:
        """Many times, so that they meet at their files by chance, too."""
        source, form = made("files", "image"), load(FORMATS, "files")
        wanted = digests(some_samples(COUNT, "image"))

        def read(copy: Path, number: int) -> None:
            lazy = open_lazily(source, copy)
            for epoch in range(3):
                for sample in form.read(lazy, ReaderShare(number, WORKERS, epoch, 0, True, 1)):
                    assert digests([sample]) == {sample.key: wanted[sample.key]}

        for turn in range(10):
            copy = tmp_path / str(turn)
            open_lazily(source, copy)
            children = [in_child(lambda number=number, copy=copy: read(copy, number)) for number in range(WORKERS)]
            assert [ended(child) for child in children] == [0] * WORKERS


class TestNames:
    """No file has its own name before it is known to be right: others read what has."""

    @pytest.mark.parametrize("kind", ["image", "volume", "mlm"])
    def test_a_samples_files_have_none_while_they_are_checked(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        lazy, seen = open_lazily(made("files", kind), tmp_path / "copy"), []
        digest = files.content_digest

        def checking(sample: Any) -> str:
            seen.append(len(finished(lazy.folder)))
            return digest(sample)

        monkeypatch.setattr(files, "content_digest", checking)
        next(load(FORMATS, "files").read(lazy, ReaderShare(0, 1, 0, 0, False, 1)))
        assert seen == [1]  # the index alone
        assert len(finished(lazy.folder)) == (3 if kind == "volume" else 2)

    def test_a_damaged_index_is_not_there_for_others_when_its_reader_dies(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, copy = made("files", "image"), tmp_path / "copy"

        def damaging(target: int, content: memoryview, place: int) -> int:
            return os.pwrite(target, bytes(content[:-1]) + b"\x7f", place)

        with monkeypatch.context() as patched:
            patched.setattr(copying, "os", Replaced(pwrite=damaging))
            patched.setattr(lazily.np, "load", lambda *arguments, **options: os._exit(9))
            assert ended(in_child(lambda: open_lazily(source, copy))) != 0
        assert not (copy / INDEX).exists()
        assert np.array_equal(open_lazily(source, copy).index, source.index)

    def test_half_of_a_pair_is_made_whole(self, made: Made, tmp_path: Path) -> None:
        """Who brought it was killed between the two."""
        source = made("files", "volume")
        lazy = open_lazily(source, tmp_path / "copy")
        next(load(FORMATS, "files").read(lazy, ReaderShare(0, 1, 0, 0, False, 1)))
        whole = finished(lazy.folder)
        for path in (path for path in whole if path.name != INDEX):
            path.unlink()
            assert digests(list(in_order(lazy))) == digests(some_samples(COUNT, "volume"))
            assert path.read_bytes() == (source.folder / path.name).read_bytes()

    def test_what_the_manifest_does_not_list_is_compared_with_its_source(
        self, mine: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = mine("webdataset", "image")
        (source.folder / "more").write_bytes(b"content")
        lazy = open_lazily(source, tmp_path / "copy")
        with monkeypatch.context() as patched:
            patched.setattr(
                copying, "os", Replaced(pwrite=lambda target, _, place: os.pwrite(target, b"CONTENT", place))
            )
            with pytest.raises(DatasetError, match="more: its copy has another checksum"):
                lazy.brings("more")
        assert not (lazy.folder / "more").exists()
        assert lazy.brings("more")
        assert (lazy.folder / "more").read_bytes() == b"content"
