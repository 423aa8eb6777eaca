"""Stores, staging folders and datasets on two late mounts of one folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.asked import only_if_asked
from tests.faults.conftest import bench, wait_until
from tests.late.mounts import LateMounts, missing

__all__ = ["bench", "wait_until"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need FUSE."""
    only_if_asked(HERE, missing(), config, items)


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[LateMounts]:
    made = LateMounts(tmp_path / "late")
    yield made
    made.close()
