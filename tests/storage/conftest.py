"""Fixtures of the storage tests: a folder of tiny JPEGs, and small datasets of every kind and format."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from tests.storage.samples import jpeg, small_shards, some_samples, store
from tests.storage.staged import Process

pytest.register_assert_rewrite("tests.storage.conformance", "tests.storage.damage")
pytest.register_assert_rewrite("tests.storage.loaders.conformance", "tests.storage.loaders.memory")

FEW = 6
Made = Callable[..., Dataset]
"""made(format, kind, options, count): a dataset shared by all tests; nobody may change it."""


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
    """Make a dataset of six images in a format; shards hold two each."""

    def make(name: str) -> Dataset:
        convert_dataset(class_folder, tmp_path / name, Wanted("resnet50", "tiny", name, options=small_shards(name)))
        return open_dataset(tmp_path / name)

    return make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Datasets made once for all tests."""
    root = tmp_path_factory.mktemp("made")
    found: dict[object, Dataset] = {}

    def make(name: str, kind: str, options: dict[str, int | str] | None = None, count: int = 26) -> Dataset:
        options = small_shards(name, 3) if options is None else options
        wanted = (name, kind, tuple(sorted(options.items())), count)
        if wanted not in found:
            found[wanted] = store(some_samples(count, kind), kind, root / str(len(found)), name, options)
        return found[wanted]

    return make


@pytest.fixture
def mine(made: Made, tmp_path: Path) -> Made:
    """Copies of such datasets, for tests that damage them."""

    def copy(name: str, kind: str, options: dict[str, int | str] | None = None, count: int = FEW) -> Dataset:
        options = small_shards(name) if options is None else options
        target = tmp_path / f"{name}-{kind}"
        shutil.copytree(made(name, kind, options, count).folder, target)
        return open_dataset(target)

    return copy


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(source: Path, target: Path, slow_s: float = 0.05) -> Process:
        started.append(Process(source, target, slow_s))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()
