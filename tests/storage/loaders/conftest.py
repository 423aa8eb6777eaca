"""Fixtures of the loaders' tests."""

import time
from collections.abc import Callable

import pytest

from benchsuite.storage.create.volumes import volume_sample
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.dataset.sample import fresh
from benchsuite.storage.loaders import LoaderProtocol
from tests.storage.samples import SHARDED, store

VOLUME_BYTES = 24_000_000
PATCH = 64


@pytest.fixture
def settled() -> Callable[[LoaderProtocol, int], None]:
    """Wait until a loader's readers have read so many samples; they must not go on."""

    def wait(loader: LoaderProtocol, samples: int) -> None:
        for _ in range(2000):
            if loader.counts().samples >= samples:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        assert loader.counts().samples == samples

    return wait


@pytest.fixture(scope="session")
def large_volumes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dataset]:
    """Datasets of four volumes of known size, made once in each format that is asked for."""
    root = tmp_path_factory.mktemp("large")
    params = {"patch_size": PATCH, "mean_bytes": VOLUME_BYTES, "stdev_bytes": 1}
    made: dict[str, Dataset] = {}

    def make(form: str) -> Dataset:
        if form not in made:
            samples = [volume_sample(number, fresh, 0, params) for number in range(4)]
            options = {"shard_samples": 1} if form in SHARDED else {}
            made[form] = store(samples, "volume", root / form, form, options)
        return made[form]

    return make
