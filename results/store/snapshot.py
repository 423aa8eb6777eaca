"""A store at one moment: its Parquet parts, and the records that only segments hold."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchsuite.results.store.manifest import PARQUET, DamagedPartsError, Manifest, Part, load
from benchsuite.results.store.place import StoreError
from benchsuite.results.store.segments import (
    LINE,
    OFFSET,
    SEGMENT,
    Passed,
    Stored,
    no_segments,
    parsed,
    read,
    segment_name,
    segment_paths,
    unreadable,
    without_collector,
)

T = TypeVar("T")
ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Snapshot:
    """A store at one moment: what is compacted, and the records that are not."""

    store: Path
    manifest: Manifest
    tail: Sequence[Stored]
    passed: Sequence[Passed]
    """Lines that are no records, or none that this version knows."""
    damage: str | None = None
    """Why the parts are not used, and all is read from segments; None where they are."""

    def paths(self) -> list[str]:
        """Every Parquet file."""
        return [str(self.store / PARQUET / name) for name in sorted(self.manifest.files())]


def snapshot(store: Path, damage: str | None = None) -> Snapshot:
    """What a store holds now; else as `read_whole`."""

    def gathered(manifest: Manifest, passed: list[Passed]) -> tuple[Manifest, list[Stored]]:
        return manifest.checked(), list(recorded(all_lines(store, manifest), passed))

    (manifest, found), passed, damage = read_whole(store, gathered, damage)
    return Snapshot(store, manifest, found, passed, damage)


def read_whole(
    store: Path, read: Callable[[Manifest, list[Passed]], T], damage: str | None = None
) -> tuple[T, list[Passed], str | None]:
    """What is read of a store by its manifest; the lines passed over; and why parts were not used, if they were not.

    Args:
        store: its folder.
        read: notes lines that are no records in the list that it is given. Where a part turns out to be damaged it is
            called again, with a manifest of nothing: then segments are read alone.
        damage: why the parts are not to be used from the beginning.

    Raises:
        StoreError: it cannot be read.
    """
    while True:
        passed: list[Passed] = []
        try:
            with without_collector():
                return read(load(store) if damage is None else Manifest(), passed), passed, damage
        except DamagedPartsError as error:
            damage = str(error)
        except OSError as error:
            raise StoreError(f"store {store}: cannot be read: {error.strerror}") from error


def recorded(found: Iterable[Stored | Passed], passed: list[Passed]) -> Iterator[Stored]:
    """The records among lines; others are noted in `passed`."""
    for line in found:
        if isinstance(line, Stored):
            yield line
        else:
            passed.append(line)


def all_lines(store: Path, manifest: Manifest) -> Iterator[Stored | Passed]:
    """What must be read line by line: what no part covers, and parts whose records were not checked as today.

    Raises:
        DamagedPartsError: such a part cannot be read.
        OSError: a segment cannot be.
    """
    if not manifest.is_checked:
        yield from compacted_records(store, manifest.parts)
    yield from no_segments(store)
    for path in segment_paths(store):
        try:
            for start, end in manifest.open_ranges(segment_name(path), path.stat().st_size):
                for _, line in read(path, start, end):
                    yield line
        except PermissionError:
            yield unreadable(path)


def compacted_records(store: Path, parts: Sequence[Part]) -> Iterator[Stored | Passed]:
    """The records of parts, from their JSON.

    Raises:
        DamagedPartsError: a part is missing or damaged.
    """
    files = [str(store / PARQUET / part.file) for part in parts]
    if not files:
        return
    import duckdb

    try:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET enable_progress_bar = false")
            rows = connection.execute(f"SELECT {SEGMENT}, {OFFSET}, {LINE} FROM read_parquet($files)", {"files": files})
            while some := rows.fetchmany(ROWS_AT_ONCE):
                for segment, offset, line in some:
                    yield parsed(segment, offset, line.encode())
    except (duckdb.Error, UnicodeError, AttributeError, TypeError) as error:
        raise DamagedPartsError(store, error) from error
