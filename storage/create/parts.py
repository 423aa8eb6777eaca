"""Make a dataset by several hosts: each a part of its samples, and the last one joins the parts.

A part is a dataset of its own beside the target, so that one which is cut off is made anew and nothing else. Joining
links the parts' files into one folder, copies nothing, and writes one index and one manifest.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchsuite.storage import format_of
from benchsuite.storage.create.convert import Progress, Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import (
    INDEX,
    MANIFEST,
    Dataset,
    FileInfo,
    IndexRow,
    Manifest,
    dataset_id,
    is_dataset,
    new_dataset,
    open_dataset,
    read_manifest,
    text,
    write_manifest,
)
from benchsuite.storage.errors import DatasetError, told

LAYOUTS = ("files", "tar", "tfrecord")
"""Layouts of formats whose files can stand beside those of another part."""


@dataclass(frozen=True)
class Part:
    """One of several parts of a dataset; the first is number 1."""

    number: int
    count: int

    def samples(self, total: int) -> range:
        """The samples of this part: as many as any other's, or one more."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def folder(self, target: Path) -> Path:
        """Where it lies until all are joined."""
        return target.with_name(f"{target.name}.part-{self.number}-of-{self.count}")


def generate_part(
    target: Path, wanted: Wanted, part: Part, total: int, seed: int, progress: Progress, encoding: str
) -> Manifest | None:
    """Make a part, unless it is there, and join all if it was the last: the joined manifest; None where others miss.

    Raises:
        DatasetError: a format of one file, fewer samples than parts, or a part that was made otherwise.
    """
    if format_of(wanted.format).layout not in LAYOUTS:
        raise DatasetError(
            f"format {wanted.format} cannot be made in parts; allowed: files, webdataset, tfrecord; convert afterwards"
        )
    if total < part.count:
        raise DatasetError(f"{total} samples make no {part.count} parts; allowed: up to {total} parts")
    if is_dataset(target):
        raise DatasetError(f"{target}: exists already; give a new folder or remove it first")
    folder = part.folder(target)
    if not is_dataset(folder):
        generate_dataset(folder, wanted, total, seed, progress, encoding=encoding, samples=part.samples(total))
    made = read_manifest(folder)
    asked = (wanted.workload, wanted.variant, wanted.format, seed, total)
    if _asked(made) != asked or made.num_samples != len(part.samples(total)):
        raise DatasetError(f"{folder}: was made with other samples or another seed: remove it")
    parts = [replace(part, number=number).folder(target) for number in range(1, part.count + 1)]
    return join(target, parts) if all(map(is_dataset, parts)) else None


def join(target: Path, folders: list[Path]) -> Manifest | None:
    """Make one dataset of all parts and remove them; None where another process is at it.

    Raises:
        DatasetError: the parts do not belong together, or cannot be read.
    """
    mark = target.with_name(f"{target.name}.joining")
    with told(f"{target}: cannot be joined; after a process that was killed at it, remove {mark}"):
        try:
            mark.mkdir()
        except FileExistsError:
            return None
        try:
            if is_dataset(target):  # by a process that saw all parts a moment before this one
                return None
            manifest = _joined(target, [open_dataset(folder) for folder in folders])
            for folder in folders:
                shutil.rmtree(folder)
            return manifest
        finally:
            mark.rmdir()


def _joined(target: Path, parts: list[Dataset]) -> Manifest:
    manifests = [part.manifest for part in parts]
    if len({_asked(one) for one in manifests}) > 1:
        raise DatasetError(f"{target}: its parts were made with different samples or seeds: remove those that are old")
    rows: list[IndexRow] = []
    files: list[FileInfo] = []
    with new_dataset(target, 0) as folder:
        for number, part in enumerate(parts, 1):
            names = dict(_names(part, number))
            for old, new in names.items():
                (folder / new).parent.mkdir(parents=True, exist_ok=True)
                os.link(part.folder / old, folder / new)
            files += [info.model_copy(update={"path": names[info.path]}) for info in part.manifest.files]
            rows += [_row(row, names) for row in part.index]
        ((key, count),) = Counter(row.key for row in rows).most_common(1)
        if count > 1:
            raise DatasetError(f"two samples of the parts have the key {key!r}")
        result = _manifest(manifests, files, rows)
        write_manifest(folder, rows, result)
    return result


def _asked(manifest: Manifest) -> tuple[object, ...]:
    """What a part was made of."""
    return manifest.workload, manifest.variant, manifest.format, manifest.created["seed"], manifest.created.get("total")


def _manifest(manifests: Sequence[Manifest], files: list[FileInfo], rows: list[IndexRow]) -> Manifest:
    """The manifest of the whole."""
    first = manifests[0]
    extents = [one.params["min_extent"] for one in manifests if "min_extent" in one.params]
    created = {name: value for name, value in first.created.items() if name != "total"} | {"parts": len(manifests)}
    for name in ("num_files", "num_bytes"):
        created[name] = sum(int(one.created[name] or 0) for one in manifests)
    created["conversion_s"] = max(float(one.created["conversion_s"] or 0) for one in manifests)
    created["when"] = datetime.now(UTC).isoformat(timespec="seconds")
    return first.model_copy(
        update={
            "num_samples": len(rows),
            "num_classes": None if first.num_classes is None else max(row.label for row in rows) + 1,
            "params": first.params | ({"min_extent": min(extents)} if extents else {}),
            "stored_bytes": sum(one.stored_bytes for one in manifests),
            "files": files,
            "dataset_id": dataset_id((row.key, row.digest) for row in rows),
            "created": created,
        }
    )


def _row(row: np.void, names: Mapping[str, str]) -> IndexRow:
    return IndexRow(
        text(row["key"]), names[text(row["file"])], int(row["bytes"]), text(row["digest"]), int(row["label"])
    )


def _names(part: Dataset, number: int) -> Iterator[tuple[str, str]]:
    """Each data file of a part, and its name in the whole: shards are numbered alike in every part, samples are not."""
    alike = format_of(part.manifest.format).layout != "files"
    for path in part.folder.rglob("*"):
        name = path.relative_to(part.folder)
        if path.is_file() and name.name not in (MANIFEST, INDEX):
            yield str(name), str(name.with_name(f"part{number:04d}-{name.name}") if alike else name)
