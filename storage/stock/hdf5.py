"""Format `hdf5` by h5py's indexing, a sample at a time; in a bucket over a file of fsspec, which obstore opens."""

from operator import getitem
from typing import Any

import h5py
import numpy as np
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, data_file, inside, text
from benchsuite.storage.formats.hdf5 import own_dataset
from benchsuite.storage.objects.client import claim
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import settings
from benchsuite.storage.stock.reader import Fields, Stock, named, open_image


class Hdf5(TorchDataset[Fields]):
    """One file, or several; each is opened when it is first needed, and stays open.

    Links that lead out of a file are refused, where h5py's indexing would follow them; a volume's are looked at once.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind = dataset, dataset.manifest.kind
        self.names, self.keys = dataset.index["file"].tolist(), dataset.index["key"].tolist()
        names, firsts = np.unique(dataset.index["file"], return_index=True)
        self.first_row = dict(zip(map(bytes, names), firsts.tolist(), strict=True))
        self.opened: dict[bytes, Any] = {}
        self.looked_at = bytearray(len(self.names))

    def __getitem__(self, row: int) -> Fields:
        name = self.names[row]
        if name not in self.opened:
            self.opened[name] = self._open(name)
        file, at = self.opened[name], row - self.first_row[name]
        if self.kind == "volume":
            take = getitem if self.looked_at[row] else own_dataset
            group = take(file, text(self.keys[row]))
            fields = {field: take(group, field)[()] for field in KIND_FIELDS["volume"]}
            self.looked_at[row] = True
            return fields
        if self.kind != "image":
            return {field: file[field][at] for field in KIND_FIELDS[self.kind]}
        start, end = file["image_offsets"][at : at + 2]
        return {"image": open_image(file["image"][start:end].tobytes()), "label": file["label"][at]}

    def _open(self, name: bytes) -> Any:
        """Open a file, and look once at the datasets that all its samples lie in."""
        path = inside(self.dataset.folder, text(name))
        whole = _object(path) if isinstance(path, ObjectPath) else data_file(self.dataset, text(name))
        file = h5py.File(whole, "r")
        shared = {"volume": (), "image": ("image", "label", "image_offsets")}
        for field in shared.get(self.kind, KIND_FIELDS[self.kind]):
            own_dataset(file, field)
        return file


def _object(path: ObjectPath) -> Any:
    """An object as fsspec opens it."""
    from obstore.fsspec import FsspecStore

    claim()
    found = settings(path.bucket)
    options = found.of_obstore(path.bucket)
    return FsspecStore("s3", client_options=found.client_options(), **options).open(str(path))


STOCK = Stock("h5py", by_row=Hdf5, asks_buckets=lambda: named("obstore"))
