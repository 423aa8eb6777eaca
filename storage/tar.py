"""Format `webdataset`: tar shards read in sequence by the webdataset library.

The library imports torch, so it is imported where it is used: planning a sweep needs neither.
"""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from storage import npy
from storage.fields import KIND_FIELDS, RECORD_KINDS, image_extension, record, unpack
from storage.format import Dataset, Format, IndexRow, Lane, data_file, dealt, index_row
from storage.sample import DatasetError, Sample, Value
from storage.shards import batched, first_rows, mixed, problem, shards, smallest_lane

DEFAULT_SHARD_SAMPLES = 128


def write(folder: Path, samples: Iterable[Sample], shard_samples: int = DEFAULT_SHARD_SAMPLES) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each (the last may be shorter)."""
    from webdataset import TarWriter

    if shard_samples < 1:
        raise DatasetError(f"shard_samples must be at least 1. Found: {shard_samples}")
    for number, run in enumerate(batched(samples, shard_samples)):
        name = f"shard-{number:06d}.tar"
        with (folder / name).open("wb") as file, TarWriter(file, encoder=False, mtime=0, format="PAX_FORMAT") as writer:
            for sample in run:
                writer.write({"__key__": sample.key, **_members(sample)})
                yield index_row(sample, name)


def _members(sample: Sample) -> dict[str, bytes]:
    """Contents of a sample's members by extension, as is customary for tar shards."""
    if "image" not in sample.fields:
        return {"npy": npy.dumps(record(sample))}
    return dict(_member(name, value) for name, value in sample.fields.items())


def _member(name: str, value: Value) -> tuple[str, bytes]:
    if isinstance(value, np.ndarray):
        return f"{name}.npy", npy.dumps(value)
    return (image_extension(value), bytes(value)) if name == "image" else ("cls", bytes(value))


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    rows = first_rows(dataset)
    numbers = dealt(len(shards(dataset.manifest)), lane)
    samples = (sample for number in numbers for sample in _read_shard(dataset, int(number), rows))
    return mixed(samples, dataset.manifest, lane)


def _read_shard(dataset: Dataset, number: int, rows: list[int]) -> Iterator[Sample]:
    """The samples of one shard, refusing a shard whose content is not what the index says."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    path = data_file(dataset, shards(dataset.manifest)[number].path)
    row, end = rows[number], rows[number + 1]
    try:
        with path.open("rb") as stream:
            for raw in group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])):
                if row >= min(end, len(dataset.index)) or raw["__key__"] != dataset.key(row):
                    raise DatasetError(f"{path}: member {raw['__key__']!r} is not the one that the index names")
                yield Sample(str(raw["__key__"]), fields_of(dataset.manifest.kind, raw, path), row, str(path))
                row += 1
    except DatasetError:
        raise
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DatasetError(f"{path}: corrupt tar: {str(error.args[0]).partition(' @ ')[0]}") from error
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error.args[0]}") from error
    if row != end:
        raise DatasetError(f"{path}: {end - row} samples short of the {end - rows[number]} in the index")


def fields_of(kind: str, raw: dict[str, bytes], path: Path) -> dict[str, Value]:
    """The fields of a sample, from its members by extension.

    Raises:
        DatasetError: a member is missing or is not what its extension says.
    """
    where = f"{path}: sample {raw['__key__']!r}"
    members = {extension: value for extension, value in raw.items() if not extension.startswith("__")}
    found: dict[str, Value] = {}
    if kind in RECORD_KINDS and "npy" in members:
        try:
            return dict(unpack(npy.view(members["npy"], where), KIND_FIELDS[kind]))
        except DatasetError:
            raise
        except ValueError as error:
            raise DatasetError(f"{where}: {error}") from error
    for extension, value in members.items():
        if extension.endswith(".npy"):
            found[extension.removesuffix(".npy")] = npy.view(value, where)
        elif extension in IMAGE_EXTENSIONS:
            found["image"] = value
        elif extension == "cls":
            found["label"] = value
    missing = [name for name in KIND_FIELDS[kind] if name not in found]
    if missing:
        wanted = {"image": "jpg", "label": "cls"}.get(missing[0], "npy") if kind == "image" else f"{missing[0]}.npy"
        raise DatasetError(f"{where} lacks .{wanted}")
    return found


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png")
WEBDATASET = Format(
    "webdataset",
    frozenset(KIND_FIELDS),
    write,
    read,
    problem,
    smallest_lane,
    file_per_sample=False,
    sequential=True,
    options={"shard_samples": int},
)
