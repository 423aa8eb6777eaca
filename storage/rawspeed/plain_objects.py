"""What given objects give to so many threads: the ceiling of a loader that reads them, by the same client."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Lock

from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.rawspeed.plain_reader import PIECE_BYTES, Ceiling, slice_rates

Sized = tuple[ObjectPath, int | None]
"""An object and its size, None of one that is read whole: the file of a sample, which the manifest does not list."""
Piece = tuple[ObjectPath, int, int | None]
"""An object, where to begin in it and where to end; None: all of it."""


def objects_of(dataset: Dataset, paths: Sequence[Path]) -> list[Sized]:
    """The objects of a dataset that are named, with their sizes by its manifest."""
    sizes = {str(dataset.folder / info.path): info.bytes for info in dataset.manifest.files}
    return [(path, sizes.get(str(path))) for path in paths if isinstance(path, ObjectPath)]


def read_objects(
    objects: Sequence[Sized], threads: int, seconds: float, share: tuple[int, int] = (0, 1)
) -> Ceiling | None:
    """What these objects give to so many threads in their order; each is read once, large ones by ranges.

    Where other nodes read at the same time, each reads its `share` (number, of how many). None without any.

    Raises:
        DatasetError: an object cannot be read.
    """
    pieces, lock = islice(_pieces(objects), share[0], None, share[1]), Lock()
    with ThreadPoolExecutor(threads) as pool:
        start_s = time.perf_counter()
        logs = list(pool.map(_read, [pieces] * threads, [lock] * threads, [start_s + seconds] * threads))
    log = sorted((at_s - start_s, num_bytes) for own in logs for at_s, num_bytes in own)
    total = sum(num_bytes for _, num_bytes in log)
    if not total:
        return None
    took_s = log[-1][0]
    whole = next(pieces, None) is None
    return Ceiling(total / took_s, slice_rates(log, took_s), total, took_s, threads, whole)


def _pieces(objects: Sequence[Sized]) -> Iterator[Piece]:
    for path, size in objects:
        if size is None or size <= PIECE_BYTES:
            yield path, 0, None
        else:
            yield from ((path, start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES))


def _read(pieces: Iterator[Piece], lock: Lock, deadline_s: float) -> list[tuple[float, int]]:
    """Read pieces until they or the time are over: when each had come, and its bytes."""
    log = []
    while time.perf_counter() < deadline_s:
        with lock:
            piece = next(pieces, None)
        if piece is None:
            break
        path, start, end = piece
        bucket = bucket_of(path)
        found = bucket.get(path.key) if end is None else bucket.get_range(path.key, start, end)
        log.append((time.perf_counter(), len(found.data)))
    return log
