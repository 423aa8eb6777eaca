"""Packages of someone else, found by their entry points as if pip had installed them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.conftest import class_folder, made, mine, small  # noqa: F401  (fixtures of the suites)
from tests.storage.loaders.conftest import settled  # noqa: F401

FOLDERS = sorted(str(path.parent) for path in Path(__file__).parent.glob("*/*.dist-info"))


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[list[str]]:
    sys.path[:0] = FOLDERS
    yield FOLDERS
    for folder in FOLDERS:
        sys.path.remove(folder)
