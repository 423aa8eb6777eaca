"""The manifest of a store's Parquet parts: which there are, and up to where they cover the segments.

STORE/parquet/manifest.json is replaced by rename, so a reader sees one state or the next. Segments stay: parts are made
from them and never stand alone for what is not flushed. Whoever loses a race of two compactions leaves parts that no
manifest names.
"""

import os
import secrets
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchsuite.results.store.place import StoreError, share
from benchsuite.results.store.segments import Passed, fsync_path, regular_file
from benchsuite.results.store.shapes import MAX_NUMBER

PARQUET = "parquet"
"""The folder of a store that holds parts and manifest."""
MANIFEST = "manifest.json"
VERSION = 4
"""The version of a manifest; history:
  1  first version
  2  its parts hold records that `results.store.record` has checked; those of version 1 are checked as they are read
  3  their columns have the names of records of schema 2; parts of earlier versions are read from the records' JSON
  4  they have the reader of records from before `data.reader`
"""
MEND = "the segments hold everything and are read instead: remove {} and compact again"


class DamagedPartsError(StoreError):
    """Parts, or their manifest, that cannot be read: segments hold all that they hold."""

    def __init__(self, store: Path, why: Exception | str) -> None:
        told = next(iter(str(why).splitlines()), type(why).__name__)
        super().__init__(f"store {store}: its Parquet cannot be read: {told}; {MEND.format(store / PARQUET)}")


Place = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
"""A place in a segment, in bytes."""


class Part(BaseModel):
    """One Parquet file of records of one kind."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: str
    kind: str
    num_records: int
    columns: dict[str, str] = Field(
        description="what each column holds: benchsuite.results.store.columns.Holds; null: no such column"
    )


class Manifest(BaseModel):
    """What was compacted."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = VERSION
    parts: tuple[Part, ...] = ()
    covered_bytes: dict[str, Place] = Field(default_factory=dict, description="by segment: compacted up to here")
    passed: dict[str, list[tuple[Place, Place]]] = Field(
        default_factory=dict, description="by segment: offset and length of lines that were no records; read again"
    )
    earlier_attempts: str | None = Field(None, description="Parquet file of the records that a later attempt replaces")

    def files(self) -> set[str]:
        """Every file that it names."""
        return {part.file for part in self.parts} | ({self.earlier_attempts} if self.earlier_attempts else set())

    @property
    def is_checked(self) -> bool:
        """Whether what its parts hold was checked, and has the names, as records are today."""
        return self.version >= VERSION

    def checked(self) -> "Manifest":
        """Itself, or that nothing was compacted, where its parts were not checked."""
        return self if self.is_checked else Manifest()

    def open_ranges(self, segment: str, num_bytes: int) -> list[tuple[int, int | None]]:
        """The ranges of a segment of this length that must still be read: start and end (none: to its end)."""
        covered = self.covered_bytes.get(segment, 0)
        passed: list[tuple[int, int | None]] = [
            (start, start + length) for start, length in self.passed.get(segment, [])
        ]
        return passed + ([(covered, None)] if num_bytes > covered else [])


def passed_by_segment(passed: list[Passed]) -> dict[str, list[tuple[int, int]]]:
    """Passed lines as a manifest keeps them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in passed:
        if line.owner is not None:  # of whom it can be read there is no such line
            continue
        found.setdefault(line.segment, []).append((line.offset, line.num_bytes))
    return found


def load(store: Path) -> Manifest:
    """A store's manifest; an empty one where nothing was compacted.

    Raises:
        DamagedPartsError: it is damaged, or a file that it names is missing or none: a pipe would never end.
        StoreError: it is of a newer version.
    """
    path = store / PARQUET / MANIFEST
    try:
        manifest = Manifest.model_validate_json(regular_file(path))
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "damaged"
        raise DamagedPartsError(store, f"{path.name}: {why}") from error
    if manifest.version > VERSION:
        why = f"is of version {manifest.version}, known is {VERSION}"
        raise StoreError(f"store {store}: {path.name} {why}; use a newer benchsuite")
    for name in sorted(manifest.files()):
        if not os.path.isfile(store / PARQUET / name):
            raise DamagedPartsError(store, f"{name}: missing, or no file")
    return manifest


def save(store: Path, manifest: Manifest, unfinished: Path) -> None:
    """Put a manifest, which is written in that folder first, in the place of the one before, flushed."""
    (unfinished / MANIFEST).write_bytes(manifest.model_dump_json().encode())
    share(unfinished / MANIFEST, store)
    publish(store / PARQUET / MANIFEST, written=unfinished / MANIFEST)


def temporary(path: Path) -> Path:
    """A name beside a path that no reader looks at and no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def publish(path: Path, content: bytes | None = None, written: Path | None = None) -> None:
    """Give content, or a file that was written under a temporary name, its name: flushed first."""
    if written is None:
        written = temporary(path)
        written.write_bytes(content or b"")
    fsync_path(written)
    written.replace(path)
    fsync_path(path.parent)
