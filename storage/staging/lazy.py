"""A dataset whose files are copied to a node-local folder when a reader first opens them.

Formats ask for a file's path by `data_file` or `Dataset.brings`, and find it there. A file is copied once, whoever
wants it: its unfinished copy is locked, and renamed when it is whole and checked, so that what has the file's name may
be read by everyone. What the manifest does not list is checked by who asks for it, else compared with its source. The
folder has no manifest, so it does not pass for a dataset; `benchsuite.storage.staging.stage.stage` makes it one.
"""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchsuite.inside.files import own_folders
from benchsuite.storage.dataset.manifest import INDEX, Dataset, file_digest, inside
from benchsuite.storage.errors import DatasetError, told_by_file
from benchsuite.storage.staging.copy import Copied, FileCopy, copy_file, no_matter
from benchsuite.storage.staging.lock import is_at, locked

Check = Callable[[list[Path]], None]


class Fetch:
    """Brings files of a dataset into a folder; called with their names, whether one was missing there.

    Those that the manifest does not list have no digest: `check` is told where they lie before they get their names,
    and raises where they are not what they should be.
    """

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

    def __call__(self, *names: str, check: Check | None = None) -> bool:
        targets = [inside(self._folder, name) for name in names]
        if all(target.exists() for target in targets):
            if self.found is not None:
                self.found += targets
            return False
        with told_by_file(targets[0]):
            return self._bring([self._wanted(*pair, check) for pair in zip(names, targets, strict=True)], check)

    def _wanted(self, name: str, target: Path, check: Check | None) -> FileCopy:
        source, info = inside(self._source, name), self._listed.get(name)
        if info is not None:
            return FileCopy(source, target, info.bytes, info.digest)
        return FileCopy(source, target, digest=None if check else file_digest(source, max_threads=1))

    def _bring(self, wanted: list[FileCopy], check: Check | None) -> bool:
        """Copy what nobody has copied meanwhile, name it when all of it is checked; whether there was any."""
        with ExitStack() as locks:
            new = []
            for one in wanted:
                own_folders(one.target.parent)
                if self._copied(one, locks.enter_context(locked(one.making))):
                    new.append(one)
            if new and check:
                _checked(check, wanted, new)
            for one in new:
                one.name()
        return bool(new)

    def _copied(self, wanted: FileCopy, descriptor: int) -> bool:
        """Copy a file unless someone else has done so while its lock was waited for; whether it was copied."""
        if wanted.target.exists():
            if is_at(descriptor, wanted.making):
                wanted.making.unlink()
            return False
        self.hidden |= copy_file(wanted, descriptor, self._told)
        return True


def _checked(check: Check, wanted: list[FileCopy], new: list[FileCopy]) -> None:
    """Check files that belong together; new ones are removed where they are not what they should be."""
    try:
        check([one.making if one in new else one.target for one in wanted])
    except DatasetError as error:
        for one in new:
            one.making.unlink()
        raise DatasetError(f"{new[0].source}: damaged there, or on the way: {error}") from error


def open_lazily(dataset: Dataset, folder: Path) -> Dataset:
    """The dataset as it is read by way of `folder`, which is made where it is missing and filled as it is read."""
    fetch = Fetch(dataset, folder)
    fetch(INDEX)
    index = np.load(folder / INDEX, mmap_mode="r", allow_pickle=False)
    return replace(dataset, folder=folder, index=index, fetch=fetch)
