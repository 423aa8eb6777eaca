"""What is written goes to the disk on the way, whole, and with the digest that it has there."""

import errno
import os
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import file_digest
from benchsuite.storage.formats import write_behind
from benchsuite.storage.formats.write_behind import BLOCK_BYTES, Shard, WriteBehind


def test_a_shard_of_several_blocks_is_whole_and_digested(tmp_path: Path):
    parts = [b"head", os.urandom(BLOCK_BYTES), b"between", memoryview(os.urandom(BLOCK_BYTES + 1)), b"end"]
    with WriteBehind() as way, (tmp_path / "a").open("wb") as file:
        shard = Shard(file, way)
        for part in parts:
            shard.write([part])
    assert (tmp_path / "a").read_bytes() == b"".join(parts)
    assert shard.bytes == (tmp_path / "a").stat().st_size
    assert shard.digest == file_digest(tmp_path / "a")


def test_descriptors_are_closed(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    with WriteBehind() as way:
        for name in "abc":
            with (tmp_path / name).open("wb") as file:
                file.write(bytes(BLOCK_BYTES))
                file.flush()
                way.written(file.fileno(), 0, BLOCK_BYTES)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("number", "raises"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)])
def test_a_failing_disk_is_no_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool):
    monkeypatch.setattr(write_behind, "_sync_range", lambda *arguments: number)
    with (tmp_path / "a").open("wb") as file:
        way = WriteBehind()
        way.written(file.fileno(), 0, BLOCK_BYTES)
        if raises:
            with pytest.raises(OSError, match=os.strerror(number)):
                way.__exit__(None, None, None)
        else:
            way.__exit__(None, None, None)
