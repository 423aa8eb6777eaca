"""Format `hdf5` by h5py's indexing, a sample at a time."""

from typing import Any

import h5py
import numpy as np
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, data_file, text
from benchsuite.storage.stock.reader import Fields, Stock, open_image


class Hdf5(TorchDataset[Fields]):
    """One file, or several; each is opened when it is first needed, and stays open."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind = dataset, dataset.manifest.kind
        names, firsts = np.unique(dataset.index["file"], return_index=True)
        self.first_row = dict(zip(map(text, names), firsts.tolist(), strict=True))
        self.opened: dict[str, Any] = {}

    def __getitem__(self, row: int) -> Fields:
        name = text(self.dataset.index["file"][row])
        if name not in self.opened:
            self.opened[name] = h5py.File(data_file(self.dataset, name), "r")
        file, at = self.opened[name], row - self.first_row[name]
        if self.kind == "volume":
            group = file[self.dataset.key(row)]
            return {field: group[field][()] for field in KIND_FIELDS["volume"]}
        if self.kind != "image":
            return {field: file[field][at] for field in KIND_FIELDS[self.kind]}
        start, end = file["image_offsets"][at : at + 2]
        return {"image": open_image(file["image"][start:end].tobytes()), "label": file["label"][at]}


STOCK = Stock("h5py", by_row=Hdf5)
