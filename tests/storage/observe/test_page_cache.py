"""Eviction, warming and residency on real files, also as a user who does not own them."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchsuite.storage.observe.page_cache import Residency, evict, residency, warm
from tests.storage.samples import PAGES_MAY_GO, file_system

PAGE = mmap.PAGESIZE
PAGES = 64
NOBODY = 65534


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory: nothing there can be evicted")
    return tmp_path


def make(path: Path, pages: int = PAGES) -> Path:
    path.write_bytes(os.urandom(pages * PAGE))
    return path


def test_evicted_is_0_and_what_is_read_is_more(on_disk: Path) -> None:
    path = make(on_disk / "file")
    evict([path])
    assert residency([path]) == Residency(0.0)
    warm([path])
    assert (residency([path]).fraction or 0) > 0


@PAGES_MAY_GO
def test_evicted_is_0_and_warm_is_1(on_disk: Path) -> None:
    path = make(on_disk / "file")
    evict([path])
    assert residency([path]) == Residency(0.0)
    warm([path])
    assert residency([path]) == Residency(1.0)
    evict([path])
    assert residency([path]).fraction == 0


def test_what_was_just_written_is_evicted_too_and_kept(on_disk: Path) -> None:
    path = on_disk / "dirty"
    content = os.urandom(PAGES * PAGE + 17)
    path.write_bytes(content)
    evict([path])
    assert residency([path]).fraction == 0
    assert path.read_bytes() == content


def test_residency_does_not_read(on_disk: Path) -> None:
    path = make(on_disk / "file")
    evict([path])
    residency([path])
    assert residency([path]).fraction == 0


@PAGES_MAY_GO
def test_a_part_is_a_fraction(on_disk: Path) -> None:
    path = make(on_disk / "file")
    evict([path])
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(0, PAGES, 4):
            os.pread(file.fileno(), 1, page * PAGE)
    assert residency([path]).fraction == 0.25


@PAGES_MAY_GO
def test_files_weigh_by_their_size_and_only_those_named_are_touched(on_disk: Path) -> None:
    large, little = make(on_disk / "large", 30), make(on_disk / "little", 10)
    warm([large, little])
    evict([large])
    assert residency([large, little]) == Residency(0.25)


@PAGES_MAY_GO
def test_a_last_page_that_is_not_full_counts_as_one(on_disk: Path) -> None:
    path = on_disk / "odd"
    path.write_bytes(b"x" * (PAGE + 1))
    warm([path])
    assert residency([path]).fraction == 1


def test_nothing_to_measure_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert residency([tmp_path / "empty"]).fraction is None
    assert residency([]) == Residency(None)


@PAGES_MAY_GO
def test_of_large_files_even_windows_are_measured(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.storage.observe.page_cache.WINDOW_BYTES", 4 * PAGE)
    path = make(on_disk / "file")
    warm([path])
    assert residency([path], max_bytes=PAGES // 4 * PAGE) == Residency(1.0, 0.25)


@PAGES_MAY_GO
def test_of_many_files_an_even_sample_is_measured(on_disk: Path) -> None:
    paths = [make(on_disk / f"{number:02d}", 1) for number in range(20)]
    warm(paths)
    evict(paths[10:])
    assert residency(paths, max_files=10) == Residency(0.5, 0.5)
    assert residency(paths, max_files=7).measured_fraction <= 7 / 20
    assert residency(paths, max_files=20) == Residency(0.5)


@pytest.fixture
def owned_by_root() -> Iterator[Path]:
    """A warm file of root's that everybody may read, in a folder that everybody may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user who does not own the file")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        if file_system(folder) in ("tmpfs", "ramfs"):
            pytest.skip("/var/tmp lies in memory: nothing there can be evicted")
        folder.chmod(0o755)
        path = make(folder / "file")
        path.chmod(0o644)
        evict([path])
        warm([path])
        yield path
    finally:
        shutil.rmtree(folder)


def as_nobody(call: Callable[[], object]) -> str:
    """What a call returns, as text, in a forked child without privileges."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = repr(call())
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        return pipe.read()


@PAGES_MAY_GO
def test_another_users_file_hides_its_residency(owned_by_root: Path) -> None:
    """mincore would answer 1.0 there, whatever is resident."""
    assert as_nobody(lambda: residency([owned_by_root])) == repr(Residency(None, 0.0))
    assert residency([owned_by_root]).fraction == 1


@PAGES_MAY_GO
def test_one_hidden_file_among_others_hides_the_fraction(owned_by_root: Path) -> None:
    own = make(owned_by_root.parent / "own")
    os.chown(own, NOBODY, NOBODY)
    assert as_nobody(lambda: residency([own]).fraction) == "1.0"
    assert as_nobody(lambda: residency([own, owned_by_root]).fraction) == "None"


def test_another_users_file_can_be_evicted(owned_by_root: Path) -> None:
    assert as_nobody(lambda: evict([owned_by_root])) == "None"
    assert residency([owned_by_root]).fraction == 0


@PAGES_MAY_GO
def test_a_file_that_one_may_write_shows_its_residency(owned_by_root: Path) -> None:
    owned_by_root.chmod(0o666)
    assert as_nobody(lambda: residency([owned_by_root]).fraction) == "1.0"
    evict([owned_by_root])
    assert as_nobody(lambda: residency([owned_by_root]).fraction) == "0.0"
