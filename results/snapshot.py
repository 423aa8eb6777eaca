"""A store at one moment: its Parquet parts, and the records that only segments hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.manifest import MEND, PARQUET, Manifest, load
from results.segments import (
    LINE,
    OFFSET,
    SEGMENT,
    Passed,
    Stored,
    StoreError,
    parsed,
    read,
    segment_paths,
    without_collector,
)

ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Snapshot:
    """A store at one moment: what is compacted, and the records that are not."""

    store: Path
    manifest: Manifest
    tail: Sequence[Stored]
    num_unreadable: int

    def paths(self) -> list[str]:
        """Every Parquet file."""
        return [str(self.store / PARQUET / name) for name in sorted(self.manifest.files())]


def snapshot(store: Path) -> Snapshot:
    """What a store holds now.

    Raises:
        StoreError: it cannot be read.
    """
    manifest = load(store)
    found: list[Stored] = []
    num_unreadable = 0
    try:
        with without_collector():
            for path in segment_paths(store):
                for start, end in manifest.open_ranges(path.name, path.stat().st_size):
                    for _, line in read(path, start, end):
                        if isinstance(line, Passed):
                            num_unreadable += 1
                        else:
                            found.append(line)
    except OSError as error:
        raise StoreError(f"store {store}: cannot be read: {error.strerror}") from error
    return Snapshot(store, manifest, found, num_unreadable)


def compacted_records(found: Snapshot) -> Iterator[Stored | Passed]:
    """The records of every part, from their JSON.

    Raises:
        StoreError: a part is missing or damaged.
    """
    files = [str(found.store / PARQUET / part.file) for part in found.manifest.parts]
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
    except duckdb.Error as error:
        mend = MEND.format(found.store / PARQUET)
        raise StoreError(f"store {found.store}: cannot be read: {str(error).splitlines()[0]}; {mend}") from error
