"""Temporary folders of killed processes are removed by the next one; those of others are kept."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.contract.scratch import OWNER, PREFIX, remove_abandoned, scratch
from benchsuite.storage.dataset.partial import this_process

HOLD = """if True:
    import sys, time
    from pathlib import Path
    from benchsuite.contract.scratch import scratch

    with scratch(Path(sys.argv[1])) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "x").write_bytes(b"1")
        print(folder, flush=True)
        time.sleep(600)
"""
Held = tuple["subprocess.Popen[str]", Path]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """A process that works in a folder below, and the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child, Path(child.stdout.readline().strip())
        child.kill()


def kill(child: "subprocess.Popen[str]") -> None:
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL


def left(parent: Path, owner: str | None, name: str = f"{PREFIX}0") -> Path:
    """A folder that says whose it is, if anything."""
    folder = parent / name
    folder.mkdir()
    if owner is not None:
        (folder / OWNER).write_text(owner)
    return folder


def earlier() -> str:
    """A process with this one's number that began before it."""
    host, pid, _ = this_process().split("-")
    return f"{host}-{pid}-1"


def test_it_is_removed_when_it_is_done_with(tmp_path: Path) -> None:
    with scratch(tmp_path) as folder:
        (folder / "x").touch()
        assert folder.parent == tmp_path and folder.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []


def test_it_is_in_the_temporary_folder_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch() as folder:
        assert folder.parent == tmp_path


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, held: Held) -> None:
    child, folder = held
    kill(child)
    assert (folder / "deep" / "x").exists()
    with scratch(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


class TestKept:
    def test_that_of_a_running_process(self, tmp_path: Path, held: Held) -> None:
        _, folder = held
        remove_abandoned(tmp_path)
        assert (folder / "deep" / "x").exists()

    def test_that_of_this_process(self, tmp_path: Path) -> None:
        with scratch(tmp_path) as mine:
            remove_abandoned(tmp_path)
            assert mine.exists()

    @pytest.mark.parametrize("host", ["0" * 16, "0123456789abcdef"])
    def test_that_of_another_host_on_a_shared_file_system(self, tmp_path: Path, host: str) -> None:
        """Whatever runs under its number here."""
        folder = left(tmp_path, f"{host}-{'-'.join(earlier().split('-')[1:])}")
        remove_abandoned(tmp_path)
        assert folder.exists()

    @pytest.mark.parametrize("owner", [None, "", "nobody", "\x00", "0123456789abcdef-1", "../../x-1-1"])
    def test_one_that_does_not_say_whose_it_is(self, tmp_path: Path, owner: str | None) -> None:
        """Another process may have made it this moment."""
        folder = left(tmp_path, owner)
        remove_abandoned(tmp_path)
        assert folder.exists()

    def test_what_is_named_otherwise(self, tmp_path: Path) -> None:
        folder = left(tmp_path, earlier(), "mine")
        remove_abandoned(tmp_path)
        assert folder.exists()

    def test_what_a_link_leads_to(self, tmp_path: Path) -> None:
        folder = left(tmp_path, earlier(), "mine")
        (tmp_path / f"{PREFIX}link").symlink_to(folder)
        remove_abandoned(tmp_path)
        assert folder.exists()


def test_a_number_that_another_process_has_meanwhile_is_no_running_owner(tmp_path: Path) -> None:
    folder = left(tmp_path, earlier())
    remove_abandoned(tmp_path)
    assert not folder.exists()
