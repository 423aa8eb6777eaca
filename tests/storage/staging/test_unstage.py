"""Copies are removed when asked; where they go."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.staging import stage as staging
from benchsuite.storage.staging.stage import MARK, node_local_folder, stage, unstage
from tests.storage.conftest import Made


class TestUnstage:
    def test_a_copy_is_removed(self, made: Made, tmp_path: Path) -> None:
        stage(made("files", "image").folder, tmp_path / "copy")
        assert (tmp_path / "copy" / MARK).exists()
        assert unstage(tmp_path / "copy")
        assert list(tmp_path.iterdir()) == []
        assert not unstage(tmp_path / "copy")

    def test_what_was_not_staged_is_not_removed(self, mine: Made) -> None:
        source = mine("files", "image")
        with pytest.raises(DatasetError, match=rf"no {MARK} in it; nothing was removed"):
            unstage(source.folder)
        verify_dataset(source.folder)


def test_where_copies_go() -> None:
    both = {"SLURM_TMPDIR": "/slurm", "TMPDIR": "/mine"}
    assert node_local_folder("/nvme", both) == Path("/nvme")
    assert node_local_folder(None, both) == Path("/slurm")
    assert node_local_folder(None, {"TMPDIR": "/mine"}) == Path("/mine")
    assert node_local_folder(None, {"TMPDIR": ""}) == Path("/tmp")
    assert node_local_folder(None, {}) == Path("/tmp")


def test_a_file_system_without_locks_is_told(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(DatasetError, match="its file system has no locks: give a node-local folder"):
        stage(made("files", "image").folder, tmp_path / "copy")
    assert staging.THREADS > 1
