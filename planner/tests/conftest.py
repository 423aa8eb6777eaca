"""Fixtures of the planner's tests."""

import os
from pathlib import Path

import pytest

from tests.helpers.fixtures import no_site_or_user_file, published, run_cli  # noqa: F401

HERE = Path(__file__).parent


def pytest_configure() -> None:
    """Tables heed COLUMNS, which pytest-xdist sets."""
    os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are of `make test-all`."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
