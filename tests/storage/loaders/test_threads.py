"""Loader `threads`: the loaders' suite, and what is its own."""

import threading

import pytest
import torch

from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.kinds import Kind
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.threads import ThreadsLoader
from tests.storage.conftest import Made
from tests.storage.loaders.conformance import BATCH, COUNT, SEED, LoaderConformance, children
from tests.storage.loaders.memory import MemoryConformance
from tests.storage.samples import PARAMS


class TestThreads(LoaderConformance, MemoryConformance):
    name = "threads"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_thread_per_worker_and_no_process(made: Made, count: int) -> None:
    before = threading.active_count(), children()
    spec = DataSpec(num_workers=count, pin_memory=False)
    dataset = made("files", "image", None, COUNT)
    loader = ThreadsLoader(LoaderInput(dataset, spec, load(KINDS, "image"), PARAMS["image"], BATCH, 0, 1, SEED))
    next(loader)
    assert (threading.active_count(), children()) == (before[0] + count, before[1])
    loader.close()
    assert (threading.active_count(), children()) == before


def test_each_reader_computes_with_one_core_whatever_the_training_uses(made: Made) -> None:
    threads: set[int] = set()
    image = load(KINDS, "image")

    def decode(sample, params, rng, row) -> None:
        image.decode(sample, params, rng, row)
        threads.add(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        spec = DataSpec(num_workers=2, pin_memory=False)
        kind = Kind("image", image.tensors, decode)
        loader = ThreadsLoader(
            LoaderInput(made("files", "image", None, COUNT), spec, kind, PARAMS["image"], BATCH, 0, 1, SEED)
        )
        for _ in range(4):
            next(loader)
        assert torch.get_num_threads() == 2
        loader.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == {1}
