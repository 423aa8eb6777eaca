"""The plainest use of each library by hand for token sequences: BERT's samples, and windows of a stream."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.dataset.sample import Array, Value

Get = Callable[[int], dict[str, Value]]


def record_getter(dataset: Dataset, files: list[Path]) -> Get | None:
    """Reads the fields of a row, in `files[row]`, with the format's library; None where that reads in sequence."""
    names = KIND_FIELDS[dataset.manifest.kind]
    opened: dict[str, Any] = {}

    def from_files(row: int) -> dict[str, Value]:
        return _fields(np.load(files[row]), names)

    def from_hdf5(row: int) -> dict[str, Value]:
        import h5py

        file = opened["file"] = opened.get("file") or h5py.File(files[0])
        return {name: np.asarray(file[name][row]) for name in names}

    def from_lmdb(row: int) -> dict[str, Value]:
        import lmdb

        if "map" not in opened:
            opened["map"] = lmdb.open(str(files[0]), subdir=False, readonly=True, lock=False)
        with opened["map"].begin() as transaction:
            return _fields(np.load(io.BytesIO(transaction.get(f"{row:010d}/npy".encode()))), names)

    def from_tokens(row: int) -> dict[str, Value]:
        if "stream" not in opened:
            opened["stream"] = np.memmap(files[0], dataset.manifest.fields[0].dtype, "r")
        length = dataset.manifest.params["seq_len"]
        return {"tokens": opened["stream"][row * length : (row + 1) * length + 1]}

    ways: Mapping[str, Get] = {"files": from_files, "hdf5": from_hdf5, "lmdb": from_lmdb, "tokens": from_tokens}
    return ways.get(dataset.manifest.format)


def _fields(stored: Array, names: tuple[str, ...]) -> dict[str, Value]:
    return {name: stored[name] for name in names} if stored.dtype.names else {names[0]: stored}
