"""Loaders beside a device: page-locked batches, copies that do not block, and DALI decoding on the GPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchsuite.storage import KINDS, LOADERS, load
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader

PARAMS = {"image_size": 64}
BATCH = 8


@pytest.fixture
def dataset(dataset_root: Path) -> Dataset:
    return open_dataset(dataset_root / "files")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["torch", "threads"])
def test_batches_are_page_locked_and_whole_after_a_copy_that_does_not_block(
    dataset: Dataset, name: str, workers: int
) -> None:
    spec = DataSpec(num_workers=workers, prefetch_factor=2, pin_memory=True)
    kind = load(KINDS, "image")
    loader = load(LOADERS, name)(LoaderInput(dataset, spec, kind, PARAMS, BATCH, 0, 1, 0, cuda_device=0))
    try:
        for turn in range(3 * loader.queue_batches + 6):
            batch = next(loader).batch
            kept = {key: value.clone() for key, value in batch.items()}
            copies = {key: value.to("cuda", non_blocking=True) for key, value in batch.items()}
            if turn % 2 and name == "threads":
                loader.copies.queued()
            assert all(value.is_pinned() for value in batch.values()), "copies of pageable memory block"
            torch.cuda.synchronize()
            assert all(torch.equal(copies[key].cpu(), kept[key]) for key in kept)
    finally:
        loader.close()


def test_a_stock_loader_pins_for_the_device_alone(dataset: Dataset) -> None:
    kind, spec = load(KINDS, "image"), DataSpec(num_workers=1, reader="stock")
    for device in (0, None):
        loader = TorchLoader(LoaderInput(dataset, spec, kind, PARAMS, BATCH, 0, 1, 0, cuda_device=device))
        try:
            assert next(loader).batch["image"].is_pinned() == (device is not None)
        finally:
            loader.close()


@pytest.mark.skipif(
    find_spec("nvidia") is None or find_spec("nvidia.dali") is None, reason="nvidia.dali is not installed"
)
@pytest.mark.parametrize("form", ["files", "webdataset"])
def test_dali_decodes_on_the_device(dataset_root: Path, form: str) -> None:
    dataset = open_dataset(dataset_root / form)
    kind = load(KINDS, "image")
    spec = DataSpec(format=form, loader="dali", num_workers=2, shuffle=False)
    ours = load(LOADERS, "dali")(LoaderInput(dataset, spec, kind, PARAMS, BATCH, 0, 1, 0, cuda_device=0))
    try:
        delivered = next(ours)
        assert delivered.batch["image"].is_cuda and delivered.batch["image"].shape == (BATCH, 3, 64, 64)
        labels = dataset.index["label"][delivered.rows].tolist()
        assert delivered.batch["label"].flatten().tolist() == labels
        assert torch.isfinite(delivered.batch["image"]).all()
    finally:
        ours.close()
