"""What formats of sequential shards share: shards are dealt whole, and samples mixed in a buffer."""

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.manifest import (
    Dataset,
    FileInfo,
    Manifest,
    ReaderShare,
    dealt,
    text,
    too_few,
)
from benchsuite.storage.dataset.opened import DataFile, open_data
from benchsuite.storage.dataset.sample import Allocate, Sample, Value, fresh, reserved
from benchsuite.storage.errors import DatasetError

T = TypeVar("T")
_IMPORTING = threading.Lock()
"""Held by the thread that imports webdataset: its modules import each other, and another thread would see them half
made."""
LIKELY_READERS = 16
"""Ranks x workers that shards are made for where nothing else is asked for."""
MAX_SHARD_SAMPLES = 128
"""Samples of a shard, where nothing else is asked for."""
MAX_BUFFER_BYTES = 1 << 29
"""A shuffle buffer holds no more than that, so that volumes do not fill the memory."""


class Pool:
    """Memory of samples that are not yet consumed, used again once they are: a shuffle buffer holds many at a time."""

    def __init__(self, dataset: Dataset, lane: ReaderShare) -> None:
        self._again = lane.allocate is not fresh
        self._largest = int(dataset.index["bytes"].max()) if self._again else 0
        self._free: dict[str, list[npt.NDArray[np.uint8]]] = {}
        self._names: dict[int, str] = {}

    def __call__(self, name: str, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return at least `num_bytes` bytes; memory is used again for what has the same name."""
        free = self._free.setdefault(name, [])
        found = free.pop() if free and len(free[-1]) >= num_bytes else reserved(num_bytes, self._largest)
        if self._again:
            self._names[id(found)] = name
        return found

    def release(self, used: list[npt.NDArray[np.uint8]]) -> None:
        """Nobody looks any more at these, of which each is a slice of what was given out."""
        for memory in used if self._again else ():
            if memory.base is not None:
                self._free[self._names[id(memory.base)]].append(memory.base)


_POOLS: WeakKeyDictionary[Allocate, Pool] = WeakKeyDictionary()
"""Pools by what readers allocate with: the next epoch uses the memory of the last one, whose pages exist already."""
Used = list[npt.NDArray[np.uint8]]
"""The memory that a sample occupies."""


class Stored(NamedTuple):
    """A sample as it is read from a shard, and what it occupies there where that is compressed."""

    key: str
    fields: Mapping[str, Value]
    used: Used
    compressed_bytes: int | None = None


ReadShard = Callable[[Manifest, DataFile, Pool], Iterator[Stored]]
"""Reads an open shard."""


def shards(manifest: Manifest) -> list[FileInfo]:
    """The files that hold samples; an index may lie beside them."""
    return [info for info in manifest.files if info.num_samples is not None]


def first_rows(dataset: Dataset) -> list[int]:
    """The index row of each shard's first sample, and the number of samples: rows stand in the order of writing."""
    rows = [0]
    for info in shards(dataset.manifest):
        rows.append(rows[-1] + (info.num_samples or 0))
    return rows


def buffer_samples(dataset: Dataset, lane: ReaderShare) -> int:
    """Return how many samples a shuffle buffer holds: those asked for, as far as MAX_BUFFER_BYTES hold the largest."""
    return max(1, min(lane.shuffle_buffer, MAX_BUFFER_BYTES // max(int(dataset.index["bytes"].max()), 1)))


def mixed(samples: Iterator[T], dataset: Dataset, lane: ReaderShare) -> Iterator[T]:
    """Samples mixed in a buffer of `shuffle_buffer`; as they come where the lane does not shuffle."""
    with _IMPORTING:
        from webdataset.filters import _shuffle

    if not lane.shuffle:
        return samples
    size = buffer_samples(dataset, lane)
    rng = random.Random(f"{lane.seed}:{lane.epoch}:{lane.index}:{lane.count}")
    result: Iterator[T] = _shuffle(samples, size, size, rng)
    return result


def read_shards(read_shard: ReadShard, dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: its shards in the epoch's order, then mixed in a buffer of `shuffle_buffer` samples."""
    rows = first_rows(dataset)
    numbers = dealt(len(shards(dataset.manifest)), lane)
    memory = Pool(dataset, lane) if lane.allocate is fresh else _POOLS.setdefault(lane.allocate, Pool(dataset, lane))
    found = (pair for number in numbers for pair in _checked(read_shard, dataset, int(number), rows, memory))
    for sample, used in mixed(found, dataset, lane):
        yield sample
        memory.release(used)


def _checked(
    read_shard: ReadShard, dataset: Dataset, number: int, rows: list[int], memory: Pool
) -> Iterator[tuple[Sample, Used]]:
    """The samples of one shard and their memory, refusing a shard that holds others than the index names."""
    file = open_data(dataset, shards(dataset.manifest)[number].path, in_order=True)
    path = file.path
    row, end = rows[number], rows[number + 1]
    named = map(text, np.asarray(dataset.index["key"])[row:end])
    with file:
        for key, fields, used, compressed_bytes in read_shard(dataset.manifest, file, memory):
            if key != next(named, None):
                place = row - rows[number]
                raise DatasetError(f"{path}: sample {place}: {key!r} is not the one that the index names")
            yield Sample(key, fields, row, str(path), compressed_bytes=compressed_bytes), used
            row += 1
    if row != end:
        raise DatasetError(f"{path}: {end - row} samples short of the {end - rows[number]} in the index")


def problem(manifest: Manifest, lanes: int) -> str | None:
    """Each reader needs a shard of its own."""
    count, at_most = len(shards(manifest)), manifest.num_samples // lanes
    if count >= lanes:
        return None
    smaller = f"convert with -o shard_samples={at_most}{' or less' if at_most > 1 else ''}"
    more = f"more samples: there are {manifest.num_samples}"
    return too_few(count, "shards", lanes, smaller if at_most else more)


def smallest_lane(manifest: Manifest, lanes: int) -> int:
    """Shards are dealt whole; the unluckiest reader gets the fewest and the shortest."""
    sizes = sorted(info.num_samples or 0 for info in shards(manifest))
    return sum(sizes[: len(sizes) // lanes])


def shard_sizes(count: int, shard_samples: int | None = None) -> Iterator[int]:
    """The samples of each shard, without end: so many as are asked for, else what feeds the readers that are likely.

    Of a known number of samples that makes a multiple of LIKELY_READERS shards, whose sizes differ by one at most.

    Args:
        count: of all samples; 0 where it is not known.
        shard_samples: of a shard; None: not asked for.
    """
    if shard_samples or not count:
        yield from itertools.repeat(shard_samples or MAX_SHARD_SAMPLES)
    num_shards = default_shards(count)
    yield from ((number + 1) * count // num_shards - number * count // num_shards for number in range(num_shards))
    yield from itertools.repeat(-(-count // num_shards))  # where there are more than were counted


def default_shards(count: int) -> int:
    """Into how many shards so many samples are stored, where nothing else is asked for."""
    return min(count, LIKELY_READERS * -(-count // (LIKELY_READERS * MAX_SHARD_SAMPLES)))


def batched(samples: Iterable[Sample], sizes: Iterator[int]) -> Iterator[Iterator[Sample]]:
    """Runs of so many samples each, drawn as they are used; the last may be shorter."""
    source = iter(samples)
    for first in source:
        yield _run(first, source, next(sizes))


def _run(first: Sample, source: Iterator[Sample], size: int) -> Iterator[Sample]:
    yield first
    for _ in range(size - 1):
        sample = next(source, None)
        if sample is None:
            return
        yield sample
