"""Someone else's format: all images in one ZIP file, uncompressed; the file's own checksums find damage."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchsuite.storage.dataset.manifest import (
    Dataset,
    Format,
    IndexRow,
    ReaderShare,
    data_file,
    dealt,
    index_row,
    text,
)
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError

DATA = "images.zip"


def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
    """Store an entry per field of each sample."""
    with zipfile.ZipFile(folder / DATA, "w", zipfile.ZIP_STORED) as archive:
        for row, sample in enumerate(samples):
            for name in ("image", "label"):
                archive.writestr(f"{row}/{name}", bytes(sample.fields[name]))
            yield index_row(sample, DATA)


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """Deal samples to readers, and yield this one's."""
    path = data_file(dataset, dataset.manifest.files[0].path)
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path}: {error}") from error
    with archive:
        for row in dealt(len(dataset.index), lane).tolist():
            key = text(dataset.index["key"][row])
            try:
                fields = {name: archive.read(f"{row}/{name}") for name in ("image", "label")}
            except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
                raise DatasetError(f"{path}: sample {key!r}: {error}") from error
            yield Sample(key, fields, row, str(path))


ZIP = Format(
    "zip",
    frozenset({"image"}),
    write,
    read,
    sample_overhead_bytes=512,
)
