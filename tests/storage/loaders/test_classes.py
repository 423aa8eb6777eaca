"""An image of another class than the index has, or than there are, ends loading with file and sample."""

import h5py
import numpy as np
import pytest

from benchsuite.storage import KINDS, LOADERS, load
from benchsuite.storage.dataset.manifest import INDEX, Dataset, DatasetError, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS

AT = 3


def complaint(dataset: Dataset, loader: str) -> str:
    """The line with which loading two epochs ends."""
    spec = DataSpec(loader=loader, num_workers=0, pin_memory=False)
    reading = LoaderInput(dataset, spec, load(KINDS, "image"), PARAMS["image"], 2, 0, 1, 5)
    built = load(LOADERS, loader)(reading)
    try:
        with pytest.raises(DatasetError) as raised:
            for _ in range(dataset.manifest.num_samples):
                next(built)
    finally:
        built.close()
    return str(raised.value)


@pytest.mark.parametrize("loader", ["torch", "threads"])
@pytest.mark.parametrize("label", [-1, 7, 5000])
def test_a_label_that_is_not_the_indexs(mine: Made, loader: str, label: int) -> None:
    dataset = mine("hdf5", "image")
    path, said = dataset.folder / "samples.h5", int(dataset.index["label"][AT])
    with h5py.File(path, "r+") as file:
        file["label"][AT] = label
    expected = f"{path}: sample {dataset.key(AT)!r}: class {label} stands where the index has {said}"
    assert complaint(dataset, loader) == expected


@pytest.mark.parametrize("label", [-1, 5000])
def test_a_label_of_no_class_in_the_index_itself(mine: Made, label: int) -> None:
    """Images as files have their class from there."""
    dataset = mine("files", "image")
    index = np.array(dataset.index)
    index["bytes"][AT] += len(str(label)) - len(str(index["label"][AT]))
    index["label"][AT] = label
    np.save(dataset.folder / INDEX, index)
    changed, path = open_dataset(dataset.folder), dataset.folder / index["file"][AT].decode()
    classes = dataset.manifest.num_classes
    expected = f"{path}: sample {dataset.key(AT)!r}: class {label}, the manifest says {classes} classes, from 0 on"
    assert complaint(changed, "threads") == expected
