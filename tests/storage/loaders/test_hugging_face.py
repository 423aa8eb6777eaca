"""Reader `datasets`: the fields that Hugging Face's library gives, every sample once an epoch, and what is refused."""

from collections import Counter
from importlib.util import find_spec

import pytest

from benchsuite import storage
from benchsuite.storage import KINDS, LIBRARIES, load, loader_of, reader_problem
from benchsuite.storage.dataset.manifest import ReaderShare
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS, check_stock_fields, some_samples

COUNT, BATCH, SEED = 26, 4, 5
if find_spec("datasets") is None:
    pytest.skip("datasets is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library sleeps for 5 s at the end of each shuffled epoch."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


@pytest.mark.parametrize("kind", ["image", "mlm", "tokens"])
def test_fields_are_those_that_were_stored(made: Made, kind: str) -> None:
    found = dict(load(LIBRARIES, "datasets").stream(made("parquet", kind, None, COUNT), ReaderShare()))
    assert list(found) == [sample.key for sample in some_samples(COUNT, kind)]
    check_stock_fields(found, kind, COUNT)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 2), (1, 3)])
def test_every_epoch_holds_each_sample_once(made: Made, ranks: int, workers: int) -> None:
    """The library shares a rank's files among the workers itself."""
    dataset = made("parquet", "image", None, COUNT)
    spec = DataSpec(format="parquet", reader="datasets", num_workers=workers, pin_memory=False, shuffle_buffer=7)
    orders: list[list[tuple[int, int]]] = []
    loaders = [
        loader_of(spec)(LoaderInput(dataset, spec, load(KINDS, "image"), PARAMS["image"], BATCH, rank, ranks, SEED))
        for rank in range(ranks)
    ]
    try:
        for loader in loaders:
            assert loader.implementation.startswith("datasets ")
            taken = [next(loader) for _ in range(COUNT)]
            orders.append([pair for each in taken for pair in zip(each.epochs, each.rows, strict=True)])
            assert loader.counts().unpack_s is None, "the library does not tell"
    finally:
        for loader in loaders:
            loader.close()
    for epoch in (0, 1):
        rows = [row for order in orders for number, row in order if number == epoch]
        assert Counter(rows) == Counter(range(COUNT))
        assert rows != sorted(rows)
    first, second = ([row for number, row in orders[0] if number == epoch] for epoch in (0, 1))
    assert first != second


def test_parquet_is_read() -> None:
    assert reader_problem(DataSpec(reader="datasets", format="parquet"), None) is None


def test_a_library_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_is_installed", lambda module: module != "datasets")
    told = reader_problem(DataSpec(reader="datasets", format="parquet"), None)
    assert told == "reader datasets needs datasets, which is not installed: pip install datasets"
