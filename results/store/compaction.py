"""Compaction: what segments hold becomes Parquet, and loses and doubles nothing whatever happens meanwhile.

Segments are read, never changed: a writer may append to one for days, on another machine, and there are no locks. New
parts are flushed and renamed first; one rename of the manifest makes them seen. Killed at any step, the store reads as
before. Of two compactions at once the last manifest counts, and what it does not cover is read from segments.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchsuite.results.store.columns import Batch, literal
from benchsuite.results.store.manifest import (
    MANIFEST,
    PARQUET,
    DamagedPartsError,
    Manifest,
    Part,
    load,
    passed_by_segment,
    publish,
    save,
    temporary,
)
from benchsuite.results.store.place import StoreError, folder_in, share
from benchsuite.results.store.segments import (
    LINE,
    OFFSET,
    SEGMENT,
    Passed,
    Stored,
    read,
    segment_name,
    segment_paths,
    unreadable,
    without_collector,
)
from benchsuite.results.store.snapshot import compacted_records

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PART_RECORDS = 20_480
"""Records of a part; bounds memory. Parts with fewer than half of it are made anew with what came since."""
STALE_S = 86_400.0
"""Files that no manifest names are removed after this: a reader may still hold an older manifest."""
MEMORY_LIMIT = "1GB"
COPY = "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
EARLIER = f"""
    SELECT kind, trial_id, finished_at, {SEGMENT}, {OFFSET} FROM read_parquet({{}})
    QUALIFY row_number() OVER (PARTITION BY kind, trial_id
        ORDER BY finished_at DESC, {SEGMENT} DESC, {OFFSET} DESC) > 1"""
"""Every record that a later attempt at the same trial replaces."""


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    num_new: int
    num_records: int
    num_parts: int
    num_passed: int
    parquet_bytes: int
    segment_bytes: int


@dataclass
class _Pass:
    """One compaction under way."""

    store: Path
    connection: "DuckDBPyConnection"
    unfinished: Path
    batches: dict[str, Batch] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    covered_bytes: dict[str, int] = field(default_factory=dict)

    def kinds(self) -> set[str]:
        """The kinds of the records that were added."""
        return {part.kind for part in self.parts} | set(self.batches)

    def add(self, found: Stored | Passed) -> None:
        if isinstance(found, Passed):
            self.passed.append(found)
            return
        batch = self.batches.setdefault(found.record.kind, Batch(found.record.kind))
        batch.add(found)
        if len(batch) >= PART_RECORDS:
            self.write(found.record.kind)

    def write(self, kind: str) -> None:
        """The batch of a kind as a part."""
        batch = self.batches.pop(kind)
        table, held = batch.table()
        self.connection.register("batch", table)
        file = self.copied(kind, "FROM batch")
        self.connection.unregister("batch")
        self.parts.append(Part(file=file, kind=kind, num_records=len(batch), columns=held))

    def copied(self, name: str, query: str) -> str:
        """A query's rows as a Parquet file; its name."""
        path = self.store / PARQUET / f"{name}-{secrets.token_hex(8)}.parquet"
        written = self.unfinished / path.name
        self.connection.execute(f"COPY ({query}) TO {literal(str(written))} {COPY}")
        share(written, self.store)
        publish(path, written=written)
        return path.name


def compact(store: Path, unfinished: Path | None, spill: Path | None) -> tuple[Compacted, list[Passed]]:
    """Turn what segments hold, and Parquet parts do not yet, into parts; also what lines were passed over.

    Args:
        store: which.
        unfinished: a folder of its file system, made for files until they are whole; default: one beside those.
        spill: an empty folder for what does not fit into memory; default: a temporary one.

    Raises:
        StoreError: the store cannot be read or written.
    """
    import duckdb

    unfinished = unfinished or temporary(store / PARQUET / "compaction")
    try:
        folder_in(store, PARQUET)
        unfinished.mkdir(0o755, parents=True)  # for no umask may others write it: names in it are foreseeable
        with (
            without_collector(),
            nullcontext(spill) if spill else tempfile.TemporaryDirectory() as folder,
            duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(folder)}) as connection,
        ):
            connection.execute("SET pandas_analyze_sample = 0; SET enable_progress_bar = false")
            doing = _Pass(store, connection, unfinished)
            return _compact(doing), doing.passed
    except (OSError, UnicodeError, duckdb.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise StoreError(f"store {store}: cannot be compacted: {why}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _usable(store: Path, connection: "DuckDBPyConnection") -> Manifest:
    """The manifest; that nothing was compacted, where it or a part cannot be read: then all is made anew."""
    import duckdb

    try:
        found = load(store)
        for part in found.parts:
            path = literal(str(store / PARQUET / part.file))
            whole = f"SELECT max({LINE}), max({SEGMENT}), max({OFFSET}) FROM read_parquet({path})"
            connection.execute(whole).fetchall()
    except (DamagedPartsError, duckdb.Error):
        return Manifest()
    return found


def _compact(doing: _Pass) -> Compacted:
    store, connection = doing.store, doing.connection
    before = _usable(store, connection)
    doing.covered_bytes |= before.covered_bytes
    num_new = _read_new(doing, before)
    if num_new == 0 and doing.covered_bytes == before.covered_bytes and before.is_checked:
        _remove_stale(store, before)
        return _summary(store, before, 0)
    anew = [part for part in before.parts if _is_made_anew(part, before, doing)]
    for found in compacted_records(store, anew):
        doing.add(found)
    for kind in sorted(doing.batches):
        doing.write(kind)
    parts = (*(part for part in before.parts if part not in anew), *doing.parts)
    after = Manifest(
        parts=parts,
        covered_bytes=doing.covered_bytes,
        passed=passed_by_segment(doing.passed),
        earlier_attempts=_earlier_attempts(doing, parts),
    )
    for name in before.files() - after.files():
        with suppress(OSError):
            (store / PARQUET / name).touch()
    save(store, after, doing.unfinished)
    _remove_stale(store, after)
    return _summary(store, after, num_new)


def _is_made_anew(part: Part, before: Manifest, doing: _Pass) -> bool:
    """Whether it is small and there is more of its kind, or what it holds was not checked as records are today."""
    return not before.is_checked or (part.num_records < PART_RECORDS // 2 and part.kind in doing.kinds())


def _read_new(doing: _Pass, before: Manifest) -> int:
    """Gather what no part covers; how many records that is. A line without its newline is left for later."""
    num_new = 0
    for path in segment_paths(doing.store):
        try:
            for start, end in before.open_ranges(segment_name(path), path.stat().st_size):
                for next_byte, found in read(path, start, end, ended_only=True):
                    num_new += isinstance(found, Stored)
                    doing.add(found)
                    if end is None:
                        doing.covered_bytes[segment_name(path)] = next_byte
        except PermissionError:
            doing.add(unreadable(path))
    return num_new


def _earlier_attempts(doing: _Pass, parts: Sequence[Part]) -> str | None:
    """A file of the records that later attempts replace; none where there are none."""
    if not parts:
        return None
    files = ", ".join(literal(str(doing.store / PARQUET / part.file)) for part in parts)
    doing.connection.execute("CREATE TEMP TABLE earlier AS " + EARLIER.format(f"[{files}]"))
    some = doing.connection.execute("FROM earlier LIMIT 1").fetchone()
    return doing.copied("earlier", "FROM earlier") if some else None


def _remove_stale(store: Path, manifest: Manifest) -> None:
    """Remove what killed and overtaken compactions left, and parts that were made anew: all a day later."""
    named = manifest.files() | {MANIFEST}
    for path in (store / PARQUET).iterdir():
        with suppress(OSError):
            if path.name not in named and time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _summary(store: Path, manifest: Manifest, num_new: int) -> Compacted:
    return Compacted(
        num_new=num_new,
        num_records=sum(part.num_records for part in manifest.parts),
        num_parts=len(manifest.parts),
        num_passed=sum(map(len, manifest.passed.values())),
        parquet_bytes=sum((store / PARQUET / name).stat().st_size for name in manifest.files()),
        segment_bytes=sum(path.stat().st_size for path in segment_paths(store)),
    )
