"""Loader `torch`: its workers, and the bytes they read."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchsuite.inside.processes import ProcessIO
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader
from benchsuite.storage.observe.page_cache import evict
from tests.conftest import NUM_SAMPLES
from tests.storage.conftest import Made
from tests.storage.loaders.conformance import BATCH, COUNT, SEED, children, in_turn
from tests.storage.samples import IMAGE_FORMATS, PARAMS, file_system, skip_without_library


@contextmanager
def loader_of(dataset: Dataset, **spec: object) -> Iterator[TorchLoader]:
    asked = DataSpec.model_validate({"pin_memory": False, **spec})
    loader = TorchLoader(LoaderInput(dataset, asked, load(KINDS, "image"), PARAMS["image"], BATCH, 0, 1, SEED))
    try:
        yield loader
    finally:
        loader.close()


class TestStorageBytes:
    @pytest.mark.parametrize(("name", "workers"), in_turn(IMAGE_FORMATS, [0, 2]))
    def test_grow_by_the_datasets_size_when_cold(self, dataset_root: Path, name: str, workers: int) -> None:
        if file_system(dataset_root) in ("tmpfs", "ramfs"):
            pytest.skip("the temporary folder lies in memory: nothing is read from storage there")
        skip_without_library(name)
        dataset = open_dataset(dataset_root / name)
        size = sum(path.stat().st_size for path in dataset.data_files())

        def fetched() -> int:
            with loader_of(dataset, num_workers=workers) as loader:
                before = loader.io() if not workers else ProcessIO(0, 0, 0)
                while loader.counts().samples < NUM_SAMPLES + 2 * BATCH * max(1, workers):
                    next(loader)
                after = loader.io()
            assert before is not None and after is not None
            return after.storage_bytes - before.storage_bytes

        evict(dataset.data_files())
        assert fetched() > 0.97 * size

    def test_are_unknown_as_soon_as_one_workers_are(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([ProcessIO(3, 1, 2), ProcessIO(4, 1, 40), ProcessIO(3, 1, 2), None])
        monkeypatch.setattr("benchsuite.inside.processes.process_io", lambda pid: next(answers))
        with loader_of(made("files", "image", None, COUNT), num_workers=2) as loader:
            assert loader.io() == ProcessIO(7, 2, 42)
            assert loader.io() is None


class TestWorkers:
    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_start_with_the_loader_and_stop_with_it(self, made: Made, count: int) -> None:
        before = children()
        with loader_of(made("files", "image", None, COUNT), num_workers=count) as loader:
            assert len(children()) == len(before) + count
            next(loader)
        assert children() == before

    def test_stop_while_the_error_that_ended_them_is_handled(self, small: Callable[[str], Dataset]) -> None:
        """An exception keeps the iterator that raised it alive; closing must not depend on that."""
        dataset = small("files")
        dataset.data_files()[1].unlink()
        before = children()
        try:
            with pytest.raises(DatasetError) as raised, loader_of(dataset, num_workers=2) as loader:
                for _ in range(4):
                    next(loader)
            assert raised.value is not None
            assert children() == before
        finally:
            del raised
            gc.collect()

    def test_one_that_is_killed_ends_the_loader_with_an_error(self, made: Made) -> None:
        before = children()
        with loader_of(made("files", "image", None, COUNT), num_workers=1) as loader:
            next(loader)
            (worker,) = [pid for pid in children() if pid not in before]
            psutil.Process(worker).kill()
            with pytest.raises(RuntimeError, match=r"killed|exited unexpectedly"):
                for _ in range(10):
                    next(loader)
        assert children() == before

    def test_default_settings_warn_of_nothing(self, made: Made) -> None:
        """pin_memory is on by default and documented as without effect on a machine without an accelerator."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with loader_of(made("files", "image", None, COUNT), num_workers=1, pin_memory=True) as loader:
                next(loader)
