"""Packages of someone else, found by their entry points as if pip had installed them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.storage import FORMATS
from tests.storage.conftest import class_folder, made, mine, small  # noqa: F401  (fixtures of the suites)
from tests.storage.loaders.conftest import settled  # noqa: F401

OURS = ("files", "webdataset", "tokens")
"""Formats of ours with which a loader of someone else meets its suite; with the others our own loaders do."""
FOLDERS = sorted(str(path.parent) for path in Path(__file__).parent.glob("*/*.dist-info"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the loader's suite on most formats to the full matrix."""
    for item in items:
        if "TestChannelsLast" in item.nodeid and {*map(str, values_of(item))} & others():
            item.add_marker("full")


def values_of(item: pytest.Item) -> Iterator[object]:
    """What a test is parametrized with, pairs taken apart."""
    asked = getattr(item, "callspec", None)
    for value in asked.params.values() if asked else ():
        yield from value if isinstance(value, tuple) else (value,)


def others() -> set[str]:
    return {*FORMATS} - {*OURS}


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[list[str]]:
    sys.path[:0] = FOLDERS
    yield FOLDERS
    for folder in FOLDERS:
        sys.path.remove(folder)
