"""What a killed writer left beside its target is removed by the next one; what others write is kept."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.storage.dataset import partial
from benchsuite.storage.dataset.manifest import new_dataset
from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned

WRITE = """if True:
    import sys, time
    from pathlib import Path
    from benchsuite.storage.dataset.manifest import new_dataset

    with new_dataset(Path(sys.argv[1]), 0) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "x").write_bytes(b"1")
        print(folder.name, flush=True)
        time.sleep(600)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A process that is writing the dataset `set`, and its folder in the making."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "set")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child, tmp_path / child.stdout.readline().strip()
        child.kill()


def kill(child: "subprocess.Popen[str]") -> None:
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL


def write_again(target: Path) -> None:
    with new_dataset(target, 0) as folder:
        (folder / "y").touch()


class TestKilledWriters:
    def test_what_one_left_is_removed(self, tmp_path: Path, writer: tuple["subprocess.Popen[str]", Path]) -> None:
        child, left = writer
        kill(child)
        assert (left / "deep" / "x").exists()
        write_again(tmp_path / "set")
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_one_that_its_parent_has_not_waited_for_is_gone(
        self, tmp_path: Path, writer: tuple["subprocess.Popen[str]", Path]
    ) -> None:
        child, left = writer
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        remove_abandoned(tmp_path / "set")
        assert not left.exists()

    def test_even_where_the_disk_would_be_too_small_with_it(
        self, tmp_path: Path, writer: tuple["subprocess.Popen[str]", Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Free space is looked at afterwards."""
        child, left = writer
        kill(child)

        def usage(path: Path) -> object:
            assert not left.exists()
            return os.terminal_size((0, 0)) and type("Usage", (), {"free": 1})

        monkeypatch.setattr("shutil.disk_usage", usage)
        write_again(tmp_path / "set")

    def test_another_targets_is_kept(self, tmp_path: Path, writer: tuple["subprocess.Popen[str]", Path]) -> None:
        child, left = writer
        kill(child)
        for name in ("other", "se", "set.partial-", "set2"):
            write_again(tmp_path / name)
        assert (left / "deep" / "x").exists()


class TestKept:
    def test_that_of_a_running_process(self, tmp_path: Path, writer: tuple["subprocess.Popen[str]", Path]) -> None:
        _, left = writer
        write_again(tmp_path / "set")
        assert (left / "deep" / "x").exists()

    def test_that_of_this_process(self, tmp_path: Path) -> None:
        with new_dataset(tmp_path / "set", 0) as mine:
            remove_abandoned(tmp_path / "set")
            assert mine.exists()

    def test_that_of_another_users_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        left = renamed(tmp_path / "set", started="1")
        monkeypatch.setattr(os, "kill", refuse)
        remove_abandoned(tmp_path / "set")
        assert left.exists()

    @pytest.mark.parametrize("host", ["0" * 16, "0123456789abcdef"])
    def test_that_of_another_host(self, tmp_path: Path, host: str) -> None:
        left = renamed(tmp_path / "set", host=host, started="1")
        remove_abandoned(tmp_path / "set")
        assert left.exists()

    def test_all_where_the_host_cannot_be_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        left = renamed(tmp_path / "set", started="1")
        monkeypatch.setattr(partial, "_host", lambda: "")
        unknown = renamed(tmp_path / "set", host="0" * 16, started="1")
        remove_abandoned(tmp_path / "set")
        assert left.exists() and unknown.exists()
        assert re.search("partial-0{16}-", partial_folder(tmp_path / "set").name)

    @pytest.mark.parametrize("name", [".set.partial-0123abcd", ".set.partial-", ".set.partial", "set", ".set"])
    def test_what_is_named_otherwise(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        remove_abandoned(tmp_path / "set")
        assert (tmp_path / name).exists()

    def test_what_a_link_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "x").touch()
        left = renamed(tmp_path / "set", started="1")
        left.rmdir()
        left.symlink_to(tmp_path / "mine")
        remove_abandoned(tmp_path / "set")
        assert (tmp_path / "mine" / "x").exists()


def test_an_id_that_another_process_has_meanwhile_is_no_running_writer(tmp_path: Path) -> None:
    left = renamed(tmp_path / "set", started="1")
    remove_abandoned(tmp_path / "set")
    assert not left.exists()


def test_a_killed_writer_has_ended_when_its_lock_is_free(tmp_path: Path) -> None:
    """It runs, and holds no lock, for a moment: once in a hundred times another has the lock before it is a zombie."""
    for _ in range(300):
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            fcntl.flock(os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
            os.write(told, partial.this_process().encode())
            signal.pause()
        writer = os.read(ready, 100).decode()
        os.kill(pid, signal.SIGKILL)
        with (tmp_path / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert partial.has_ended(writer)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def test_names_differ(tmp_path: Path) -> None:
    assert len({partial_folder(tmp_path / "set") for _ in range(20)}) > 15


def refuse(pid: int, number: int) -> None:
    raise PermissionError


def renamed(target: Path, host: str = "", started: str = "") -> Path:
    """A folder in the making whose name says that it is another host's or an earlier process's."""
    name = partial_folder(target).name
    known = re.fullmatch(r"(.*partial-)(\w+)-(\d+)-(\d+)-(\w+)", name)
    assert known
    found = target.with_name(f"{known[1]}{host or known[2]}-{known[3]}-{started or known[4]}-{known[5]}")
    found.mkdir()
    return found
