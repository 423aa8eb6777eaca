"""A dataset whose files are copied to a node-local folder when a reader first opens them.

Formats ask for a file's path by `data_file` or `Dataset.brings`, and find it there. A file is copied once, whoever
wants it: its unfinished copy is locked, and renamed when it is whole. The folder has no manifest, so it does not pass
for a dataset; `storage.staging.stage` makes it one.
"""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from storage.copying import Copied, FileCopy, copy_file, no_matter
from storage.format import INDEX, Dataset, inside
from storage.locked import is_at, locked
from storage.sample import DatasetError


class Fetch:
    """Brings files of a dataset into a folder; called with a file's name, whether it was missing there."""

    def __init__(self, dataset: Dataset, folder: Path, told: Copied = no_matter) -> None:
        self._source, self._folder, self._told = dataset.folder, folder, told
        self._listed = {info.path: info for info in dataset.manifest.files}
        self.found: list[Path] | None = None
        """Files that were there when they were asked for, where that is noted."""
        self.hidden = False
        """Whether it could not be told, of one of them, what was in the page cache of its source."""

    def noting(self) -> "Fetch":
        """One that notes which files it found."""
        twin = copy.copy(self)
        twin.found = []
        return twin

    def __call__(self, name: str) -> bool:
        target = inside(self._folder, name)
        if target.exists():
            if self.found is not None:
                self.found.append(target)
            return False
        _make(target.parent)
        info = self._listed.get(name)
        known = (info.bytes, info.digest) if info else ()
        return self._once(FileCopy(inside(self._source, name), target, *known))

    def _once(self, wanted: FileCopy) -> bool:
        """Copy a file unless someone else is just doing it, who is waited for."""
        try:
            with locked(wanted.making) as descriptor:
                if wanted.target.exists():
                    if is_at(descriptor, wanted.making):
                        wanted.making.unlink()
                    return False
                self.hidden |= copy_file(wanted, descriptor, self._told)
                return True
        except OSError as error:
            raise DatasetError(f"{error.filename or wanted.target}: {error.strerror or error}") from error


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{folder}: {error.strerror}") from error


def open_lazily(dataset: Dataset, folder: Path) -> Dataset:
    """The dataset as it is read by way of `folder`, which is made where it is missing and filled as it is read."""
    fetch = Fetch(dataset, folder)
    new = fetch(INDEX)
    index = np.load(folder / INDEX, mmap_mode="r", allow_pickle=False)
    if new and index.tobytes() != dataset.index.tobytes():
        (folder / INDEX).unlink()
        raise DatasetError(f"{folder / INDEX}: the copy is not the index of {dataset.folder}: damaged on the way")
    return replace(dataset, folder=folder, index=index, fetch=fetch)
