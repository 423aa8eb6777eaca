"""Format `files` as torchvision's ImageFolder reads images, and `np.load` arrays."""

import os

import numpy as np
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS, unpack
from benchsuite.storage.dataset.manifest import Dataset, inside, text
from benchsuite.storage.formats.files import VOLUME_SUFFIXES, bring
from benchsuite.storage.stock.reader import Fields, Stock


class Files(TorchDataset[Fields]):
    """A file, or a pair of them, per sample; a list of paths made once, as ImageFolder's."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind, folder = dataset, dataset.manifest.kind, os.fspath(dataset.folder)
        names = [text(name) for name in dataset.index["file"]]
        for name in names:
            if ".." in name or name.startswith("/") or "\0" in name:
                inside(dataset.folder, name)  # refuses those that lead out of the dataset
        self.paths = [f"{folder}/{name}" for name in names]
        self.labels = dataset.index["label"].tolist()

    def __getitem__(self, row: int) -> Fields:
        bring(self.dataset, row)
        path = self.paths[row]
        if self.kind == "image":
            with open(path, "rb") as file:
                return {"image": Image.open(file).convert("RGB"), "label": self.labels[row]}
        if self.kind != "volume":
            return unpack(np.load(path), KIND_FIELDS[self.kind])
        if path.endswith(".npz"):
            with np.load(path) as arrays:
                return {field: arrays[suffix] for field, suffix in VOLUME_SUFFIXES.items()}
        stem = path.removesuffix("_x.npy")
        return {field: np.load(f"{stem}_{suffix}.npy") for field, suffix in VOLUME_SUFFIXES.items()}


STOCK = Stock("numpy", by_row=Files, of_images="pillow")
