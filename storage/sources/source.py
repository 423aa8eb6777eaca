"""What every reader of users' data shares: samples on their way, their keys, and how trouble is told."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

from benchsuite.storage.dataset.local_path import regular
from benchsuite.storage.dataset.problems import MAX_TOLD, Problems
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.tokens import Documents
from benchsuite.storage.sources.hidden import in_hidden, is_hidden
from benchsuite.storage.sources.skips import MaxErrors, Skips

MAX_LISTED = 20_000
"""Files looked at to say what a folder holds instead of data."""


@dataclass(frozen=True)
class Source:
    """Samples on their way into a dataset."""

    count: int | None
    """How many there are; None where only reading tells."""
    size_bytes: int
    """What they will take on disk, about."""
    samples: Iterator[Sample]
    """The samples in a fixed order; arrays hold until the next one is drawn."""
    params: dict[str, int] = field(default_factory=dict)
    """What the samples are made for: seq_len, max_predictions, vocab_size."""
    notes: dict[str, str | int | float | None] = field(default_factory=dict)
    """What the manifest says of them: where they come from, and what was left out; whole once all samples are drawn."""
    documents: Documents | None = None
    """How a stream of tokens is divided into documents, where that is known."""
    skipped: list[str] | None = None
    """What was left out and why, a line each, whole once all samples are drawn; None where nothing may be."""


@dataclass(frozen=True)
class ReadOptions:
    """What a user says of the data, beside their kind."""

    tokenizer: str | None = None
    """A tokenizer.json, for text."""
    label_field: str | None = None
    """The field of .json files or members that holds the class; `labels.NO_FIELD`: none does."""
    max_errors: MaxErrors | None = None
    """How many samples that cannot be read are left out; None: the first one ends the conversion."""


AS_IT_IS = ReadOptions()
"""Nothing is said."""


@dataclass(frozen=True)
class Request:
    """What is asked for: samples of a kind, made for these parameters."""

    path: Path
    kind: str
    params: Mapping[str, int]
    options: ReadOptions = AS_IT_IS
    skips: Skips | None = None
    """Takes what is left out; None: nothing may be."""

    def leave_out(self, error: DatasetError) -> None:
        """Note what cannot be read and is left out.

        Raises:
            DatasetError: nothing may be left out.
        """
        if self.skips is None:
            error.may_skip = True
            raise error
        self.skips.add(error)


Find = Callable[[Path, list[Path]], list[Path]]
"""The data files, given a path and what lies in it (the path itself where it is a file); may refuse."""


@dataclass(frozen=True)
class Reader:
    """One way in which data may lie: how to find its files, and how to open them."""

    looked_for: str
    find: Find
    open: Callable[[list[Path], Request], Source]
    is_last_resort: bool = False
    """Used only where nothing else fits: a README may lie beside anything."""
    takes: frozenset[str] = frozenset()
    """The `ReadOptions` that are for this reader and not for all."""


class Keys:
    """The keys given out so far, so that no two samples get the same."""

    def __init__(self, what: str = "sample") -> None:
        self._seen: set[str] = set()
        self._what = what

    def take(self, key: str, where: object) -> str:
        """The key itself.

        Raises:
            DatasetError: another sample has it, or it cannot be written as UTF-8.
        """
        if not key or (not key.isascii() and key != key.encode(errors="replace").decode()):
            raise DatasetError(f"{where}: {key!r} cannot be a sample's key: empty or not UTF-8")
        if key in self._seen:
            raise DatasetError(f"{where}: another {self._what} has the same key {key!r}; rename one of them")
        self._seen.add(key)
        return key


def whole(makers: Iterable[Callable[[], Sample]], skips: Skips | None = None) -> Iterator[Sample]:
    """Samples as they are made; after one that is damaged the rest is only looked at, so that the end tells of all.

    Where none of the first is whole, it is the sort of data that is wrong, and the rest is not looked at. With `skips`
    those that are damaged are noted there, and the others go on.

    Raises:
        DatasetError: what is wrong, once all was looked at; several things are told by one
            `storage.dataset.problems.Damage`. More samples are damaged than `skips` takes.
    """
    problems, any_whole, total, may_skip = Problems(), False, 0, True
    try:
        for make in makers:
            total += 1
            try:
                sample = make()
            except DatasetError as error:
                if skips is not None:
                    skips.add(error)
                    continue
                problems.add(error)
                if not any_whole and problems.count == MAX_TOLD - 1:
                    raise DatasetError("none so far is whole, and the rest was not looked at") from None
                continue
            any_whole = True
            if not problems:
                yield sample
        if skips is not None:
            skips.finish(total)
    except DatasetError as error:  # and nothing more can be read
        problems.add(error)
        may_skip = error.may_skip
    problems.tell(may_skip)


def sample_key(name: str | Path) -> str:
    """A sample's key from its file's path: without suffix, and with nothing that tar readers see a meaning in.

    They take a dot for the start of a suffix, and skip what lies in a folder named `__so__`.
    """
    path = PurePosixPath(name)
    return clean_key(str(path.with_suffix("")) if path.name else str(name))


def clean_key(name: str) -> str:
    """A sample's key from a name without suffix; it leads nowhere outside a folder."""
    parts = [part for part in name.split("/") if part]
    return re.sub(r"^__([^/]*)__/", r"_\1_/", re.sub(r"[.\s\0]", "_", "/".join(parts)))


def entries(path: Path) -> list[Path]:
    """What lies in a folder, hidden files left out, in sorted order; a file itself.

    Raises:
        DatasetError: it is missing or may not be read, or something in it is neither a file nor a folder.
    """
    with told(path):
        if not path.is_dir():
            return [regular(path)]
        with os.scandir(path) as listing:
            found = [entry for entry in listing if not is_hidden(entry.name)]
    for entry in found:
        _refuse_special(entry)
    return sorted(Path(entry) for entry in found)


def _refuse_special(entry: "os.DirEntry[str]") -> None:
    """Refuse what would be read for ever; a link to nothing is told by who needs it."""
    with told(entry.path):
        if not entry.is_dir() and not entry.is_file() and os.path.exists(entry):
            regular(Path(entry))


def walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Files in a folder and all folders below, hidden ones left out, in sorted order; links are followed.

    `above`: folders it lies in.

    Raises:
        DatasetError: a folder may not be read, a link leads back to one that it lies in, or something in it is neither
            a file nor a folder.
    """
    here = os.path.realpath(folder)
    if here in above:
        raise DatasetError(f"{folder}: a link to {here}, which it lies in; remove the link")
    with told(folder), os.scandir(folder) as listing:
        found = sorted((entry for entry in listing if not is_hidden(entry.name)), key=lambda entry: entry.path)
    for entry in found:
        _refuse_special(entry)
        yield from walk(Path(entry), above | {here}) if entry.is_dir() else [Path(entry)]


def files_below(path: Path, suffixes: Iterable[str]) -> list[Path]:
    """Files with one of these suffixes in a folder and all folders below, none of them hidden, in sorted order.

    Raises:
        DatasetError: a folder may not be read, or a link leads back to one that it lies in.
    """
    wanted = tuple(suffixes)
    return sorted(found for found in walk(path) if found.name.lower().endswith(wanted))


def with_suffixes(found: Iterable[Path], *suffixes: str) -> list[Path]:
    """The paths whose name ends so and that are no folders."""
    return [path for path in found if path.name.lower().endswith(suffixes) and not path.is_dir()]


def by_suffix(*suffixes: str) -> Find:
    """Find the files whose names end so in a folder, not below it, or the file itself."""
    return lambda path, inside: with_suffixes(inside, *suffixes)


def packed(suffix: str) -> tuple[str, ...]:
    """What files with this suffix are called once they are compressed."""
    return tuple(f"{suffix}.{name}" for name in ("gz", "bz2", "xz", "zst"))


def refuse_packed(paths: Iterable[Path], suffix: str) -> None:
    """Refuse files that would have to be unpacked; left out, they would be missed by nobody.

    Raises:
        DatasetError: the first one.
    """
    for path in paths:
        if not path.name.lower().endswith(suffix):
            raise DatasetError(f"{path}: compressed; unpack it first, to {suffix}")


def file_size(path: Path) -> int:
    """Bytes of a file.

    Raises:
        DatasetError: it is missing.
    """
    with told(path):
        return path.stat().st_size


def total_size(paths: Iterable[Path]) -> int:
    """Bytes of files.

    Raises:
        DatasetError: one is missing.
    """
    return sum(map(file_size, paths))


def ends_early(path: Path, what: str, count: int, unit: str, where: str) -> DatasetError:
    """The error for a file of which nothing more can be read after `count` samples or records."""
    came_before = f"{count:,} {unit}{'' if count == 1 else 's'}"
    return DatasetError(f"{path}: {what} after {came_before} ({where}); what followed is unknown")


def nothing(path: Path, kind: str, looked_for: str) -> DatasetError:
    """The error for a file or folder in which nothing fits: what was looked for and what is there; "" is any kind."""
    below = (found for found in path.rglob("*") if found.is_file() and not in_hidden(str(found.relative_to(path))))
    files = below if path.is_dir() else iter([path])
    counts = Counter(found.suffix or "no suffix" for found in islice(files, MAX_LISTED))
    found = ", ".join(f"{suffix} ({count})" for suffix, count in counts.most_common(5)) or "no files"
    return DatasetError(f"{path}: no {f'{kind} ' if kind else ''}data: looked for {looked_for}; found {found}")
