"""Staging where others have put something at the names of its lock, its folder and its unfinished copies."""

import os
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.dataset.partial import partial_folder
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.staging.lazy import Fetch
from benchsuite.storage.staging.stage import stage, unstage
from tests.planted import KINDS, NEEDS_ROOT, NOBODY, plant
from tests.storage.conftest import Made
from tests.storage.staged import finished

THEIRS = [*KINDS, pytest.param("another's", marks=NEEDS_ROOT)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where anyone may write, as in /tmp."""
    made = tmp_path / "open"
    made.mkdir()
    return made


@pytest.mark.parametrize("kind", THEIRS)
def test_at_the_locks_name(made: Made, folder: Path, tmp_path: Path, kind: str) -> None:
    lock = folder / ".copy.lock"
    planted = plant(lock, kind, tmp_path / "mine")
    with pytest.raises(DatasetError) as error:
        stage(made("webdataset", "image").folder, folder / "copy")
    assert str(error.value).startswith(f"{lock}: ") and str(error.value).endswith(": not used")
    with pytest.raises(DatasetError, match="not used"):
        unstage(folder / "copy")
    planted.is_untouched()
    assert [path.name for path in folder.iterdir()] == [".copy.lock"]


@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize(("name", "file"), [("hdf5", "samples.h5"), ("files", "")])
def test_at_the_name_of_a_lazy_copy(made: Made, folder: Path, tmp_path: Path, kind: str, name: str, file: str) -> None:
    source = made(name, "image")
    path = folder / (file or source.data_files()[0].relative_to(source.folder))
    path.parent.mkdir(exist_ok=True)
    making = path.with_name(f".{path.name}.copy")
    planted = plant(making, kind, tmp_path / "mine")
    with pytest.raises(DatasetError) as error:
        Fetch(source, folder)(str(path.relative_to(folder)))
    assert str(error.value).startswith(f"{making}: ")
    planted.is_untouched()
    assert not path.exists()


def left_by_an_ended_writer(target: Path) -> Path:
    """The name of what a writer of `target` has left, were it one."""
    return target.with_name(partial_folder(target).name.replace(f"-{os.getpid()}-", "-4194305-"))


@pytest.mark.parametrize("target", ["elsewhere", "gone"])
def test_a_link_at_the_name_of_an_unfinished_copy(made: Made, folder: Path, tmp_path: Path, target: str) -> None:
    """What it leads to has files that staging would remove or take for its own."""
    mine = tmp_path / "elsewhere"
    mine.mkdir()
    for name in ("manifest.json", "shard-000000.tar", ".x.copy"):
        (mine / name).write_bytes(b"mine")
    left_by_an_ended_writer(folder / "copy").symlink_to(tmp_path / target)
    verify_dataset(stage(made("webdataset", "image").folder, folder / "copy").folder)
    unstage(folder / "copy")
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == dict.fromkeys(
        ("manifest.json", "shard-000000.tar", ".x.copy"), b"mine"
    )
    assert not (tmp_path / "gone").exists()


@NEEDS_ROOT
def test_anothers_unfinished_copy_is_not_gone_on_with(made: Made, folder: Path) -> None:
    """He could change what has been checked in it."""
    making = left_by_an_ended_writer(folder / "copy")
    making.mkdir()
    os.chown(making, NOBODY, NOBODY)
    stage(made("webdataset", "image").folder, folder / "copy")
    assert list(making.iterdir()) == [] and finished(folder / "copy")


@NEEDS_ROOT
def test_anothers_whole_copy_is_not_taken_for_ones_own(made: Made, folder: Path) -> None:
    source = made("webdataset", "image").folder
    stage(source, folder / "copy")
    os.chown(folder / "copy", NOBODY, NOBODY)
    with pytest.raises(DatasetError, match=rf"copy: belongs to user {NOBODY}"):
        stage(source, folder / "copy")
