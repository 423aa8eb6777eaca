"""Data files as formats read them: those of this machine by their descriptors, objects of a bucket by requests."""

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.local_path import open_regular
from benchsuite.storage.dataset.manifest import Dataset, inside, refuse_size
from benchsuite.storage.dataset.sample import Array, read_at
from benchsuite.storage.errors import told
from benchsuite.storage.objects.file import ObjectFile, Ranges
from benchsuite.storage.objects.path import ObjectPath


class LocalFile:
    """An open file of this machine.

    Raises:
        DatasetError: it is missing, may not be read, or is no file with an end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with told(path):
            self.descriptor, self.size = open_regular(path)

    def read_at(self, offset: int, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Fill a buffer from `offset` on.

        Raises:
            DatasetError: the file ends before, or cannot be read.
        """
        return read_at(self.descriptor, offset, buffer, self.path)

    def peek(self, num_bytes: int, offset: int) -> bytes:
        """Some bytes that lie near others that are wanted; fewer at the end."""
        return os.pread(self.descriptor, num_bytes, offset)

    def array(self, dtype: "np.dtype[Any]") -> Array:
        """The whole content as numbers, memory-mapped; as a plain array, of which slices are taken sooner."""
        return np.asarray(np.memmap(self.path, dtype, "r")) if self.size else np.empty(0, dtype)

    def stream(self) -> BinaryIO:
        """The file for libraries that read Python's files; it has to be closed."""
        return self.path.open("rb")

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def __enter__(self) -> "LocalFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


DataFile = LocalFile | ObjectFile
Numbers = Array | Ranges
"""Numbers that are mapped, or read when a slice of them is asked for."""


def open_file(path: Path, in_order: bool = False) -> DataFile:
    """Open a file for reading; `in_order`: from its beginning to its end."""
    return ObjectFile(path, in_order) if isinstance(path, ObjectPath) else LocalFile(path)


def open_data(dataset: Dataset, name: str, in_order: bool = False) -> DataFile:
    """Open a data file that the manifest lists, refused where its size is not the manifest's.

    Raises:
        DatasetError: it is missing, or cut short.
    """
    path = inside(dataset.folder, name)
    dataset.brings(name)
    file = open_file(path, in_order)
    try:
        refuse_size(path, file.size, dataset.said_bytes(name))
    except BaseException:
        file.close()
        raise
    return file
