"""Format `webdataset`: tar shards read in sequence by the webdataset library.

The library imports torch, so it is imported where it is used: planning a sweep needs neither.
"""

import random
import tarfile
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from storage.format import (
    EXTENSIONS,
    Dataset,
    DatasetError,
    FileInfo,
    Format,
    IndexRow,
    Lane,
    Manifest,
    Sample,
    dealt,
    index_row,
    inside,
)

DEFAULT_SHARD_SAMPLES = 128


def write(folder: Path, samples: Iterable[Sample], shard_samples: int = DEFAULT_SHARD_SAMPLES) -> Iterator[IndexRow]:
    """Write shards of `shard_samples` samples each (the last may be shorter)."""
    from webdataset import TarWriter

    if shard_samples < 1:
        raise DatasetError(f"shard_samples must be at least 1. Found: {shard_samples}")
    source = iter(samples)
    for number in count():
        batch = islice(source, shard_samples)
        first = next(batch, None)
        if first is None:
            return
        name = f"shard-{number:06d}.tar"
        with (folder / name).open("wb") as file, TarWriter(file, encoder=False, mtime=0, format="PAX_FORMAT") as writer:
            for sample in (first, *batch):
                encoded = {EXTENSIONS[field]: value for field, value in sample.fields.items()}
                writer.write({"__key__": sample.key, **encoded})
                yield index_row(sample, name)


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    from webdataset.filters import _shuffle

    shards = _shards(dataset.manifest)
    first_rows = _first_rows(dataset)
    samples = (
        sample for number in dealt(len(shards), lane) for sample in _read_shard(dataset, int(number), first_rows)
    )
    if not lane.shuffle:
        return samples
    rng = random.Random(f"{lane.seed}:{lane.epoch}:{lane.index}:{lane.count}")
    mixed: Iterator[Sample] = _shuffle(samples, lane.shuffle_buffer, lane.shuffle_buffer, rng)
    return mixed


def _shards(manifest: Manifest) -> list[FileInfo]:
    return [info for info in manifest.files if info.num_samples is not None or info.path.endswith(".tar")]


def _first_rows(dataset: Dataset) -> list[int]:
    """The index row of each shard's first sample: rows stand in the order of writing."""
    rows = [0]
    for info in _shards(dataset.manifest):
        rows.append(rows[-1] + (info.num_samples or 0))
    return rows


def _read_shard(dataset: Dataset, number: int, first_rows: list[int]) -> Iterator[Sample]:
    """The samples of one shard, refusing a shard whose content is not what the index says."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    path = inside(dataset.folder, _shards(dataset.manifest)[number].path)
    row, end = first_rows[number], first_rows[number + 1]
    try:
        with path.open("rb") as stream:
            for raw in group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])):
                if row >= min(end, len(dataset.index)) or raw["__key__"] != dataset.key(row):
                    raise DatasetError(f"{path}: member {raw['__key__']!r} is not the one that the index names")
                yield _sample(raw, row, path)
                row += 1
    except DatasetError:
        raise
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DatasetError(f"{path}: corrupt tar: {str(error.args[0]).partition(' @ ')[0]}") from error
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error.args[0]}") from error
    if row != end:
        raise DatasetError(f"{path}: {end - row} samples short of the {end - first_rows[number]} in the index")


def _sample(raw: dict[str, bytes], row: int, path: Path) -> Sample:
    key = str(raw["__key__"])
    missing = [extension for extension in EXTENSIONS.values() if extension not in raw]
    if missing:
        raise DatasetError(f"{path}: sample {key!r} lacks .{missing[0]}")
    return Sample(key, {field: raw[extension] for field, extension in EXTENSIONS.items()}, row, str(path))


def problem(manifest: Manifest, lanes: int) -> str | None:
    """Each reader needs a shard of its own."""
    shards = len(_shards(manifest))
    if shards >= lanes:
        return None
    return (
        f"{shards} shards < {lanes} readers (ranks x workers): fewer workers, or convert with --shard-samples smaller"
    )


def smallest_lane(manifest: Manifest, lanes: int) -> int:
    """Shards are dealt whole; the unluckiest reader gets the fewest and the shortest."""
    sizes = sorted(info.num_samples or 0 for info in _shards(manifest))
    return sum(sizes[: len(sizes) // lanes])


WEBDATASET = Format(
    "webdataset", frozenset({"image"}), write, read, problem, smallest_lane, file_per_sample=False, sequential=True
)
