"""Which folders are classes: the first that differ among those that hold images."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.sources.hidden import in_hidden

PARTS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})
"""What parts of a dataset are called; where all folders are named so, they are no classes."""
NO_IMAGES = "a class folder without images; classes are numbered by folders: add images, or remove it"


@dataclass(frozen=True)
class Classes:
    """Classes by folder: cat and dog of `photos/cat/1.jpg` and `photos/dog/1.jpg`, at depth 1."""

    depth: int
    numbers: Mapping[str, int]

    def of(self, name: str) -> int:
        """The class of what has this path; 0 where it lies in no folder."""
        parts = _parts(name.rpartition("/")[0])
        return self.numbers[parts[self.depth]] if len(parts) > self.depth else 0


def classes_of(folders: Iterable[str]) -> Classes:
    """The classes of what lies in these folders, numbered in sorted order."""
    parts = {_parts(folder) for folder in folders}
    depth = 0
    while parts and min(map(len, parts)) > depth + 1 and len({each[depth] for each in parts}) == 1:
        depth += 1
    names = sorted({each[depth] for each in parts if len(each) > depth})
    return Classes(depth, {name: number for number, name in enumerate(names)})


def _parts(folder: str) -> tuple[str, ...]:
    return tuple(part for part in folder.split("/") if part not in ("", "."))


def refuse_parts(classes: Classes, where: object, remedy: str) -> None:
    """Refuse folders that are all named as parts of a dataset are.

    Raises:
        DatasetError: they are.
    """
    names = classes.numbers
    if len(names) > 1 and all(name.lower() in PARTS for name in names):
        raise DatasetError(f"{where}: {', '.join(names)} are parts of a dataset, not classes: {remedy}")


def refuse_flat(folders: Collection[str], where: object) -> None:
    """Refuse images in no folder beside others in folders: of which class are they?

    Raises:
        DatasetError: there are such.
    """
    above = [folder for folder in folders if not _parts(folder)]
    if above and len(above) < len(folders):
        other = min({*folders} - {*above})
        raise DatasetError(f"{where}: images both in no folder and in folders ({other}/)")


def without_images(folders: Collection[str], with_images: Iterable[str]) -> list[str]:
    """The folders in which, and below which, there is no image; hidden ones are not meant."""
    filled = {above for folder in with_images for above in accumulate(_parts(folder), "{}/{}".format)}
    named = {"/".join(_parts(folder)) for folder in folders}
    return sorted(name for name in named - filled if name and not in_hidden(name))
