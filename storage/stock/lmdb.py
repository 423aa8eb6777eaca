"""Format `lmdb` by `txn.get`, in an environment opened as torchvision's LSUN dataset opens it."""

import os
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import lmdb
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, unpack
from benchsuite.storage.dataset.manifest import Dataset, data_file
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.lmdb import DATA, check_whole, entry_key
from benchsuite.storage.stock.reader import Fields, Stock, load_array, open_image

_environments: "WeakValueDictionary[tuple[int, str], Any]" = WeakValueDictionary()
"""Environments that are open in a process, which may open a file but once."""


def _opened(path: str) -> Any:
    """Open a file as torchvision's LSUN does."""
    found = _environments.get((os.getpid(), path))
    if found is None:
        found = lmdb.open(path, subdir=False, max_readers=1, readonly=True, lock=False, readahead=False, meminit=False)
        check_whole(Path(path), found)
        _environments[os.getpid(), path] = found
    return found


class Lmdb(TorchDataset[Fields]):
    """An environment per worker, and a transaction per sample."""

    def __init__(self, dataset: Dataset) -> None:
        self.kind, self.path = dataset.manifest.kind, str(data_file(dataset, DATA))
        self.env = _opened(self.path)

    def __getitem__(self, row: int) -> Fields:
        with self.env.begin(write=False) as txn:
            if self.kind in RECORD_KINDS:
                return unpack(load_array(self._get(txn, row, "npy")), KIND_FIELDS[self.kind])
            image, label = (self._get(txn, row, field) for field in ("image", "label"))
        if self.kind == "volume":
            return {"image": load_array(image), "label": load_array(label)}
        return {"image": open_image(image), "label": int(label)}

    def _get(self, txn: Any, row: int, field: str) -> bytes:
        value: bytes | None = txn.get(entry_key(row, field))
        if value is None:
            raise DatasetError(f"{self.path}: no entry {entry_key(row, field).decode()}")
        return value


STOCK = Stock("lmdb", by_row=Lmdb)
