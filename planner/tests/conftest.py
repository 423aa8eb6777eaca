"""Fixtures of the planner's tests."""

import os

from tests.helpers.fixtures import no_site_or_user_file, published, run_cli  # noqa: F401


def pytest_configure() -> None:
    """Tables heed COLUMNS, which pytest-xdist sets."""
    os.environ.pop("COLUMNS", None)
