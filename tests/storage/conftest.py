"""Fixtures of the storage tests: a folder of tiny JPEGs, and small datasets made from it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.convert import convert_dataset
from storage.format import Dataset, open_dataset
from tests.storage.samples import jpeg

pytest.register_assert_rewrite("tests.storage.conformance")

FEW = 6


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    """Six JPEGs in two class folders, with what file names may hold: spaces, dots, capitals, letters beyond ASCII."""
    names = ["cat/a.jpg", "cat/b c.JPEG", "cat/d.v1.JPG", "dog/a.jpg", "dog/é.jpeg", "dog/deep/er.jpg"]
    for number, name in enumerate(names):
        path = tmp_path / "jpegs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return tmp_path / "jpegs"


@pytest.fixture
def small(tmp_path: Path, class_folder: Path) -> Callable[[str], Dataset]:
    """Make a dataset of six samples in a format; tar shards hold two each."""

    def make(name: str) -> Dataset:
        options = {"shard_samples": 2} if name == "webdataset" else {}
        convert_dataset(class_folder, tmp_path / name, "resnet50", "tiny", name, options)
        return open_dataset(tmp_path / name)

    return make
