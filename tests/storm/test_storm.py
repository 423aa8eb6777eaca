"""A short storm, with a seed of its own; `make storm MINUTES=n` runs longer ones."""

from pathlib import Path

import pytest

from tests.storm.__main__ import SEED, weather

MINUTES, LATE_S = 0.25, 6


@pytest.mark.full
@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_left_behind(tmp_path: Path) -> None:
    assert weather(tmp_path, MINUTES, SEED, LATE_S) == []
