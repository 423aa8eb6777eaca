"""Check a dataset against its manifest: counts, checksums, fields."""

from collections.abc import Iterator
from pathlib import Path

from storage.convert import in_order
from storage.format import (
    Dataset,
    DatasetError,
    Sample,
    class_label,
    content_digest,
    dataset_id,
    file_digest,
    inside,
    open_dataset,
    text,
)


def verify_dataset(folder: Path) -> Dataset:
    """Read every byte of a dataset and compare it with manifest and index.

    Raises:
        DatasetError: the first thing found wrong, with file and sample.
    """
    dataset = open_dataset(folder)
    _check_files(dataset)
    _check_samples(dataset)
    return dataset


def _check_files(dataset: Dataset) -> None:
    for info in dataset.manifest.files:
        path = inside(dataset.folder, info.path)
        if not path.is_file():
            raise DatasetError(f"{path}: missing; the manifest names it")
        size = path.stat().st_size
        if size != info.bytes:
            raise DatasetError(f"{path}: {size} bytes, the manifest says {info.bytes}")
        if file_digest(path, info.digest) != info.digest:
            raise DatasetError(f"{path}: its checksum is not the manifest's")


def _readable(dataset: Dataset) -> Iterator[Sample]:
    """The samples in order; whatever a format stumbles over is the dataset's damage."""
    count = 0
    try:
        for sample in in_order(dataset):
            yield sample
            count += 1
    except DatasetError:
        raise
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DatasetError(f"{dataset.folder}: cannot be read after {count} samples: {what}") from error


def _check_samples(dataset: Dataset) -> None:
    manifest = dataset.manifest
    expected_fields = {field.name for field in dataset.manifest.fields}
    rows: list[tuple[str, str]] = []
    stored_bytes = 0
    for sample in _readable(dataset):
        entry = dataset.index[sample.index]
        if set(sample.fields) != expected_fields:
            raise DatasetError(f"{sample.source}: sample {sample.key!r} has fields {sorted(sample.fields)}")
        digest = content_digest(sample)
        if digest != text(entry["digest"]):
            raise DatasetError(f"{sample.source}: sample {sample.key!r}: its checksum is not the index's")
        stored = (text(entry["key"]), str(dataset.folder / text(entry["file"])), entry["bytes"], entry["label"])
        if stored != (sample.key, sample.source, sample.stored_bytes, class_label(sample)):
            raise DatasetError(f"{sample.source}: sample {sample.key!r}: key, file, bytes or label is not the index's")
        if manifest.num_classes is not None and not 0 <= entry["label"] < manifest.num_classes:
            raise DatasetError(
                f"{sample.source}: sample {sample.key!r}: label {entry['label']} of {manifest.num_classes}"
            )
        rows.append((sample.key, digest))
        stored_bytes += sample.stored_bytes
    if len(rows) != manifest.num_samples:
        raise DatasetError(f"{dataset.folder}: {len(rows)} samples found, the manifest says {manifest.num_samples}")
    if stored_bytes != manifest.stored_bytes:
        raise DatasetError(f"{dataset.folder}: {stored_bytes} bytes stored, the manifest says {manifest.stored_bytes}")
    if dataset_id(rows) != manifest.dataset_id:
        raise DatasetError(f"{dataset.folder}: the samples' dataset_id is not the manifest's {manifest.dataset_id}")


def same_samples(first: Dataset, second: Dataset) -> None:
    """Check that two verified datasets hold the same samples, whatever their formats.

    Raises:
        DatasetError: they differ; names the first key that does.
    """
    if first.manifest.dataset_id == second.manifest.dataset_id:
        return
    pairs = [
        {bytes(row["key"]).decode(): bytes(row["digest"]).decode() for row in dataset.index}
        for dataset in (first, second)
    ]
    key = next(key for key in sorted({*pairs[0], *pairs[1]}) if pairs[0].get(key) != pairs[1].get(key))
    raise DatasetError(f"{first.folder} and {second.folder} differ, first at sample {key!r}")
