"""Images that travel as uint8: what a device makes of them is what loaders make of them otherwise."""

import pytest
import torch

from benchsuite.storage import KINDS, LOADERS, load, loader_of, missing_loaders, reader_problem
from benchsuite.storage.dataset.kinds import normalised_images, travelling
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import Delivered
from benchsuite.storage.loaders.reader import LoaderInput
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS


def batches(made: Made, loader: str, image_dtype: str) -> list[Delivered]:
    asked = DataSpec(loader=loader, image_dtype=image_dtype, num_workers=1, pin_memory=False)
    kind = travelling(load(KINDS, "image"), asked.image_dtype)
    reading = LoaderInput(made("files", "image", None, 26), asked, kind, PARAMS["image"], 4, 0, 1, 5)
    built = loader_of(asked)(reading)
    try:
        found = []
        for _ in range(8):
            one = next(built)
            found.append(Delivered({name: value.clone() for name, value in one.batch.items()}, one.rows, one.epochs))
        return found
    finally:
        built.close()


@pytest.mark.parametrize("loader", LOADERS)
def test_a_device_normalises_them_to_what_loaders_do(made: Made, loader: str) -> None:
    if loader in missing_loaders():
        pytest.skip(missing_loaders()[loader])
    small, large = (batches(made, loader, dtype) for dtype in ("uint8", "float32"))
    for bytewise, wanted in zip(small, large, strict=True):
        assert bytewise.rows == wanted.rows
        assert bytewise.batch["image"].dtype == torch.uint8
        assert 4 * bytewise.batch["image"].nbytes == wanted.batch["image"].nbytes
        found = normalised_images(bytewise.batch)
        assert torch.equal(found["label"], wanted.batch["label"])
        torch.testing.assert_close(found["image"], wanted.batch["image"], rtol=1e-5, atol=1e-5)


def test_what_is_normalised_already_stays(made: Made) -> None:
    (first, *_) = batches(made, "threads", "float32")
    assert torch.equal(normalised_images(first.batch)["image"], first.batch["image"])


def test_other_kinds_travel_as_they_are(made: Made) -> None:
    volume = load(KINDS, "volume")
    assert travelling(volume, "uint8") is volume
    manifest = made("files", "volume", None, 26).manifest
    told = reader_problem(DataSpec(image_dtype="uint8"), manifest)
    assert told == "image_dtype uint8 is for images, the dataset holds volume samples"
