"""Files that are replaced whole or not at all: on a full disk, by links, pipes and permissions."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from benchsuite.results.export.prometheus import write_textfile
from benchsuite.results.export.tables import write_parquet
from benchsuite.results.store.replacing import replacing, write_whole
from benchsuite.results.store.store import StoreError

LONG = "x" * 100_000


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 1 kB meanwhile: writing fails half-way, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _parquet(out: Path) -> None:
    write_parquet(pd.DataFrame({"sweep": [f"{number**9}" for number in range(2000)]}), out)


@pytest.mark.parametrize(
    "write", [lambda out: write_whole(out, LONG), lambda out: write_textfile(LONG, out), _parquet], ids=range(3)
)
@pytest.mark.parametrize("old", ["old", None])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, write, old: str | None):
    out = tmp_path / "out.prom"
    if old:
        out.write_text(old)
    with small_files(), pytest.raises(StoreError, match=r"out\.prom: cannot be written: ."):
        write(out)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == ({"out.prom": old} if old else {})


def test_what_is_raised_meanwhile_leaves_what_was_there(tmp_path: Path):
    (tmp_path / "out").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "out") as made:
        made.write_text("ne")
        raise KeyboardInterrupt
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_permissions_stay_and_new_files_have_the_usual_ones(tmp_path: Path):
    old, new, usual = tmp_path / "old", tmp_path / "new", tmp_path / "usual"
    for path in (old, usual):
        path.write_text("")
    old.chmod(0o640)
    for path in (old, new):
        write_whole(path, "a\n")
    assert old.stat().st_mode & 0o777 == 0o640
    assert new.stat().st_mode == usual.stat().st_mode


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path: Path):
    (tmp_path / "link").symlink_to("file")
    for text in ("a", "b"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "file").read_text() == text and (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_into(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "a\n")
    assert os.read(reader, 99) == b"a\n"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(StoreError, match=r"no/out: cannot be written: No such file or directory$"):
        write_whole(tmp_path / "no" / "out", "")
    with pytest.raises(StoreError, match=r"cannot be written: Is a directory$"):
        write_whole(tmp_path, "")
