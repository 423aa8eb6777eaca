"""The storm needs FUSE, namespaces and root."""

from pathlib import Path

import pytest

from tests.asked import only_if_asked
from tests.storm.storm import missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """It takes minutes, and is run where it is asked for."""
    only_if_asked(HERE, missing(), config, items)
