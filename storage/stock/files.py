"""Format `files` as torchvision's ImageFolder reads images, and `np.load` arrays."""

import numpy as np
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS, unpack
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.formats.files import VOLUME_SUFFIXES, bring, paths_of
from benchsuite.storage.stock.reader import Fields, Stock


class Files(TorchDataset[Fields]):
    """A file, or a pair of them, per sample; a list of paths made once, as ImageFolder's."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind = dataset, dataset.manifest.kind
        self.labels = np.asarray(dataset.index["label"])

    def __getitem__(self, row: int) -> Fields:
        bring(self.dataset, row)
        paths = paths_of(self.dataset, row)
        if self.kind == "image":
            with paths[0].open("rb") as file:
                return {"image": Image.open(file).convert("RGB"), "label": self.labels[row]}
        if self.kind != "volume":
            return unpack(np.load(paths[0]), KIND_FIELDS[self.kind])
        if len(paths) == 1:
            with np.load(paths[0]) as arrays:
                return {field: arrays[suffix] for field, suffix in VOLUME_SUFFIXES.items()}
        return {field: np.load(path) for field, path in zip(VOLUME_SUFFIXES, paths, strict=True)}


STOCK = Stock("pillow", by_row=Files)
