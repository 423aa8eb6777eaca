"""Large reads: the same bytes whatever lies in memory, and a clear end where a file is short."""

from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.dataset.sample import AHEAD_BYTES, read_at
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe.page_cache import evict, warm

SIZE, START = AHEAD_BYTES + 12_345, 777


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE + START))
    return path


def read(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        return read_at(file.fileno(), START, np.zeros(length, np.uint8), path).tobytes()


@pytest.mark.parametrize("state", ["cold", "half", "warm"])
def test_a_large_read_is_whole_whatever_lies_in_memory(file: Path, state: str) -> None:
    content = file.read_bytes()
    (warm if state == "warm" else evict)([file])
    if state == "half":
        with file.open("rb") as opened:
            opened.read(SIZE // 2)
    assert read(file, SIZE) == content[START:]


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_a_file_that_is_short_says_by_how_much(file: Path, state: str) -> None:
    (warm if state == "warm" else evict)([file])
    with pytest.raises(DatasetError, match=f"large: ends at byte {SIZE + START}, 5 bytes short: truncated"):
        read(file, SIZE + 5)
