"""What others put at predictable names is neither followed, nor waited for, nor truncated, nor believed."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.inside.files import NotOwned, open_plain, own_folder, own_folders, read_plain, write_new
from tests.planted import NEEDS_ROOT, NOBODY, open_umask, plant

__all__ = ["open_umask"]
WRITE = os.O_RDWR | os.O_CREAT


class TestOpening:
    def test_a_file_of_ones_own_is_opened_or_made(self, tmp_path: Path) -> None:
        descriptor = open_plain(tmp_path / "x", WRITE)
        os.write(descriptor, b"content")
        os.close(descriptor)
        assert read_plain(tmp_path / "x") == b"content"

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, WRITE])
    @pytest.mark.parametrize("own", [True, False])
    @pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
    def test_what_is_no_file_is_refused(self, tmp_path: Path, kind: str, own: bool, flags: int) -> None:
        planted = plant(tmp_path / "x", kind, tmp_path / "mine")
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "x"))) as error:
            os.close(open_plain(tmp_path / "x", flags, own))
        assert isinstance(error.value, NotOwned) or kind == "folder"
        planted.is_untouched()

    def test_a_socket_and_a_device_are(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "x"))
            with pytest.raises(NotOwned, match="a socket or device"):
                open_plain(tmp_path / "x", os.O_RDONLY)
        with pytest.raises(NotOwned, match="a socket or device"):
            open_plain(Path("/dev/null"), os.O_RDWR)

    def test_a_second_name_of_a_file_is_refused_where_it_must_be_ones_own(self, tmp_path: Path) -> None:
        planted = plant(tmp_path / "x", "hard link", tmp_path / "mine")
        with pytest.raises(NotOwned, match="other names"):
            open_plain(tmp_path / "x", os.O_RDWR)
        planted.is_untouched()

    @NEEDS_ROOT
    def test_anothers_file_is_refused_where_it_must_be_ones_own(self, tmp_path: Path) -> None:
        plant(tmp_path / "x", "another's", tmp_path / "mine")
        with pytest.raises(NotOwned, match=rf"belongs to user {NOBODY}, this is 0: not used"):
            open_plain(tmp_path / "x", os.O_RDWR)
        assert read_plain(tmp_path / "x", own=False) == b"planted"


class TestWriting:
    @pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "hard link", "file"])
    def test_whatever_is_there_is_replaced(self, tmp_path: Path, kind: str) -> None:
        planted = plant(tmp_path / "x", kind, tmp_path / "mine")
        write_new(tmp_path / "x", "new", 0o600)
        planted.is_untouched()
        assert read_plain(tmp_path / "x") == b"new"
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600

    def test_nothing_is_left_of_what_failed(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        with pytest.raises(OSError, match="directory"):
            write_new(tmp_path / "x", "new")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


class TestFolders:
    def test_one_is_made_once(self, tmp_path: Path, open_umask: None) -> None:
        own_folder(tmp_path / "x")
        own_folder(tmp_path / "x")
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o755

    def test_those_above_are_made_likewise(self, tmp_path: Path, open_umask: None) -> None:
        own_folders(tmp_path / "x" / "y")
        own_folders(tmp_path / "x" / "y")
        assert [path.stat().st_mode & 0o777 for path in (tmp_path / "x", tmp_path / "x" / "y")] == [0o755] * 2

    @pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/tmp"), os.mkfifo])
    def test_what_is_none_is_refused(self, tmp_path: Path, make: Callable[[Path], object]) -> None:
        make(tmp_path / "x")
        with pytest.raises(NotOwned, match="does not belong there"):
            own_folder(tmp_path / "x")

    @NEEDS_ROOT
    def test_anothers_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        os.chown(tmp_path / "x", NOBODY, NOBODY)
        with pytest.raises(NotOwned, match=f"belongs to user {NOBODY}"):
            own_folder(tmp_path / "x")
