"""Check a dataset against its manifest: counts, checksums, fields."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchsuite.storage import format_of
from benchsuite.storage.dataset.manifest import (
    Dataset,
    DatasetError,
    FileInfo,
    Format,
    Manifest,
    ReaderShare,
    Sample,
    class_label,
    content_digest,
    dataset_id,
    file_digest,
    inside,
    open_dataset,
    refuse_size,
    text,
)
from benchsuite.storage.dataset.opened import open_file
from benchsuite.storage.dataset.problems import Problems
from benchsuite.storage.dataset.sample import Value
from benchsuite.storage.dataset.shards import first_rows, shards
from benchsuite.storage.errors import told
from benchsuite.storage.objects.path import ObjectPath


def verify_dataset(folder: Path) -> Dataset:
    """Read every byte of a dataset and compare it with manifest and index.

    Raises:
        DatasetError: what is wrong, with file and sample; several things are told by one
            `storage.dataset.problems.Damage`.
    """
    dataset = open_dataset(folder)
    form = format_of(dataset.manifest.format)
    problems = Problems()
    damaged = _check_files(dataset, problems)
    read = _of_shards if form.sequential and shards(dataset.manifest) else _of_rows
    rows = _check_samples(dataset, read(dataset, form, damaged, problems), problems)
    problems.tell()
    _check_totals(dataset, rows)
    return dataset


def _check_files(dataset: Dataset, problems: Problems) -> set[str]:
    """The files that are not as the manifest says; what is wrong with them goes into `problems`."""
    damaged = set()
    for info in dataset.manifest.files:
        try:
            with told(dataset.folder / info.path):
                _check_file(dataset, info)
        except DatasetError as error:
            problems.add(error)
            damaged.add(info.path)
    return damaged


def _check_file(dataset: Dataset, info: FileInfo) -> None:
    path = inside(dataset.folder, info.path)
    if not isinstance(path, ObjectPath) and not path.is_file():
        raise DatasetError(f"{path}: missing; the manifest names it")
    with open_file(path) as file:
        refuse_size(path, file.size, info.bytes)
    if file_digest(path, info.digest) != info.digest:
        raise DatasetError(f"{path}: its checksum is not the manifest's")


def _of_shards(dataset: Dataset, form: Format, damaged: set[str], problems: Problems) -> Iterator[Sample]:
    """The samples of all shards but those known to be damaged; one that cannot be read on does not end the others."""
    found = shards(dataset.manifest)
    for number, first in enumerate(first_rows(dataset)[:-1]):
        if found[number].path not in damaged:
            try:
                yield from _readable(dataset, form, ReaderShare(number, len(found)), first)
            except DatasetError as error:
                problems.add(error)


def _of_rows(dataset: Dataset, form: Format, damaged: set[str], problems: Problems) -> Iterator[Sample]:
    """Draw the samples of a format that reads any of them by its row: one that cannot be read is passed over.

    Where the next one fails with the same words, it is their file that fails, and all of it is passed over.
    """
    files, good, row, last = dataset.index["file"], ~_damaged_rows(dataset, form, damaged), 0, ""
    while row < len(files):
        if not good[row]:
            row += 1
            continue
        try:
            for sample in _readable(dataset, form, ReaderShare(start=row), row):
                yield sample
                row += 1
                if row < len(files) and not good[row]:
                    break
            else:
                return  # where there are fewer than in the index, the totals tell
        except DatasetError as error:
            if str(error) == last:
                good[row:] &= files[row:] != files[row]
            else:
                problems.add(error)
            last, row = str(error), row + 1


def _damaged_rows(dataset: Dataset, form: Format, damaged: set[str]) -> npt.NDArray[np.bool_]:
    """Samples that are not read, since a file of theirs is known to be damaged, or one that all of them need."""
    files = dataset.index["file"]
    if not damaged:
        return np.zeros(len(files), bool)
    own = {text(name) for name in np.unique(files)}
    if damaged - own and not form.file_per_sample:
        return np.ones(len(files), bool)
    bad = np.isin(files, np.array([name.encode() for name in damaged & own], files.dtype))
    if damaged - own and form.files_of is not None:  # the second file of a pair
        paths = {dataset.folder / name for name in damaged}
        for row in np.flatnonzero(~bad):
            bad[row] = not paths.isdisjoint(form.files_of(dataset, np.array([row])))
    return bad


def _readable(dataset: Dataset, form: Format, lane: ReaderShare, first: int) -> Iterator[Sample]:
    """A lane's samples, of which the first has this row; whatever a format stumbles over is the dataset's damage."""
    row = first
    try:
        for sample in form.read(dataset, lane):
            if lane.start and sample.index != row:
                return  # a format that cannot begin there
            yield sample
            row += 1
    except DatasetError:
        raise
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DatasetError(f"{dataset.folder}: cannot be read after {row} samples: {what}") from error


def _check_samples(dataset: Dataset, samples: Iterator[Sample], problems: Problems) -> list[tuple[str, str, int]]:
    """Key, digest and bytes of each sample; what is wrong with one goes into `problems`."""
    expected_fields = {field.name for field in dataset.manifest.fields}
    rows: list[tuple[str, str, int]] = []
    for sample in samples:
        try:
            rows.append((sample.key, _check_sample(dataset, sample, expected_fields), sample.stored_bytes))
        except DatasetError as error:
            problems.add(error)
    return rows


def _check_sample(dataset: Dataset, sample: Sample, expected_fields: set[str]) -> str:
    """A sample's digest, which is the index's."""
    entry, num_classes = dataset.index[sample.index], dataset.manifest.num_classes
    if set(sample.fields) != expected_fields:
        raise DatasetError(f"{sample.source}: sample {sample.key!r} has fields {sorted(sample.fields)}")
    digest = content_digest(sample)
    if digest != text(entry["digest"]):
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: its checksum is not the index's")
    stored = (text(entry["key"]), str(dataset.folder / text(entry["file"])), entry["bytes"], entry["label"])
    if stored != (sample.key, sample.source, sample.stored_bytes, class_label(sample)):
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: key, file, bytes or label is not the index's")
    if num_classes is not None and not 0 <= entry["label"] < num_classes:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: label {entry['label']} of {num_classes}")
    return digest


def _check_totals(dataset: Dataset, rows: list[tuple[str, str, int]]) -> None:
    manifest = dataset.manifest
    if len(rows) != manifest.num_samples:
        raise DatasetError(f"{dataset.folder}: {len(rows)} samples found, the manifest says {manifest.num_samples}")
    stored_bytes = sum(num_bytes for _, _, num_bytes in rows)
    if stored_bytes != manifest.stored_bytes:
        raise DatasetError(f"{dataset.folder}: {stored_bytes} bytes stored, the manifest says {manifest.stored_bytes}")
    if dataset_id((key, digest) for key, digest, _ in rows) != manifest.dataset_id:
        raise DatasetError(f"{dataset.folder}: the samples' dataset_id is not the manifest's {manifest.dataset_id}")


def same_samples(first: Dataset, second: Dataset) -> None:
    """Check that two verified datasets hold the same samples, whatever their formats and the width of their integers.

    Raises:
        DatasetError: they differ; names the first key that does, how many do, and in what.
    """
    if first.manifest.dataset_id == second.manifest.dataset_id:
        return
    widened = _differ_in_width(first.manifest, second.manifest)
    one, other = (_widened(dataset) if widened else _indexed(dataset) for dataset in (first, second))
    found = [key for key in sorted({*one, *other}) if one.get(key, ("",))[0] != other.get(key, ("",))[0]]
    if not found:
        return
    more = f", and at {len(found) - 1} more" if len(found) > 1 else ""
    where = f"{first.folder} and {second.folder} differ, first at sample {found[0]!r}{more}"
    raise DatasetError(f"{where}: {_how(one, other, found)}")


Told = Mapping[str, tuple[str, int]]
"""Digest and label of samples, by their keys."""


def _indexed(dataset: Dataset) -> Told:
    """Samples as the index tells them."""
    return {bytes(row["key"]).decode(): (bytes(row["digest"]).decode(), int(row["label"])) for row in dataset.index}


def _differ_in_width(first: Manifest, second: Manifest) -> bool:
    """Whether fields of two datasets differ in type, and all that do hold integers: token ids as uint16 or int32."""
    one, other = ({info.name: info.dtype for info in manifest.fields} for manifest in (first, second))
    unlike = [(one[name], other[name]) for name in one.keys() & other.keys() if one[name] != other[name]]
    return bool(unlike) and all(re.fullmatch(r"u?int\d+", dtype) for pair in unlike for dtype in pair)


def _widened(dataset: Dataset) -> Told:
    """Samples as they are read, all integers as int64."""
    found = {}
    for sample in format_of(dataset.manifest.format).read(dataset, ReaderShare()):
        fields = {name: _as_int64(value) for name, value in sample.fields.items()}
        found[sample.key] = content_digest(Sample(sample.key, fields)), class_label(sample)
    return found


def _as_int64(value: Value) -> Value:
    is_whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    return np.asarray(value, np.int64) if is_whole else value


def _how(one: Told, other: Told, found: list[str]) -> str:
    """Tell in what two datasets differ: names alone, which samples there are, labels, or content."""
    if Counter(digest for digest, _ in one.values()) == Counter(digest for digest, _ in other.values()):
        return "the same contents under other names"
    both = [key for key in found if key in one and key in other]
    labels = sum(one[key][1] != other[key][1] for key in both)
    counts = {
        "only in the first": sum(key not in other for key in found),
        "only in the second": sum(key not in one for key in found),
        "with other labels": labels,
        "with other content": len(both) - labels,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
