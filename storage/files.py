"""Format `files`: one file per sample, `<class>/<name>.jpg`; labels stand in the index."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.format import (
    Dataset,
    DatasetError,
    Format,
    IndexRow,
    Lane,
    Manifest,
    Sample,
    dealt,
    index_row,
    inside,
    text,
)


def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
    """Write each sample's image as a file of its own."""
    for sample in samples:
        name = f"{sample.key}.jpg"
        path = inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.fields["image"])
        yield index_row(sample, name)


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples, each read whole with one open and one read."""
    for row in dealt(len(dataset.index), lane):
        entry = dataset.index[row]
        path = inside(dataset.folder, text(entry["file"]))
        try:
            with open(path, "rb", buffering=0) as file:
                image = file.readall()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from error
        fields = {"image": image, "label": str(entry["label"]).encode()}
        yield Sample(text(entry["key"]), fields, int(row), str(path))


def problem(manifest: Manifest, lanes: int) -> str | None:
    """Each reader needs a sample."""
    count = manifest.num_samples
    return None if count >= lanes else f"{count} samples < {lanes} readers (ranks x workers)"


def smallest_lane(manifest: Manifest, lanes: int) -> int:
    """Samples are dealt one by one."""
    return manifest.num_samples // lanes


FILES = Format(
    "files", frozenset({"image"}), write, read, problem, smallest_lane, file_per_sample=True, sequential=False
)
