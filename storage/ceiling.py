"""What given files, such as those of a dataset, give to so many threads: the ceiling of a loader that reads them."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock

from storage.reading import aligned_buffers
from storage.sample import DatasetError

PIECE_BYTES = 4 << 20
"""Files are read in pieces of that size; smaller ones whole."""
SLICES = 5
MIN_FILES = 64
"""From so many files for each node on, nodes are dealt files."""


@dataclass(frozen=True)
class Ceiling:
    """What files gave to so many threads."""

    bytes_per_s: float
    samples_bytes_per_s: tuple[float, ...]
    """The rates of equal slices of the time."""
    num_bytes: int
    seconds: float
    threads: int
    whole: bool
    """All files were read to their end before the time was over."""


class _Pieces:
    """Pieces of files in file order, dealt to whoever asks next."""

    def __init__(self, pieces: Iterator[tuple[Path, int]]) -> None:
        self._lock = Lock()
        self._pieces = pieces
        self.whole = False

    def next(self) -> tuple[Path, int] | None:
        """The next piece, or None after the last."""
        with self._lock:
            piece = next(self._pieces, None)
            self.whole = self.whole or piece is None
            return piece


def pieces_of(files: Sequence[Path], share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Path, int]]:
    """Files and where to begin in them; of `share` (number, of how many), so that all shares make up each piece once.

    Many files are dealt whole, so that nobody looks at those of others; the pieces of few in turn.
    """
    number, count = share
    whole = len(files) >= MIN_FILES * count
    mine = files[number::count] if whole else files
    found = ((path, start) for path in mine for start in range(0, path.stat().st_size, PIECE_BYTES))
    return found if whole else islice(found, number, None, count)


def read_ceiling(
    files: Sequence[Path], threads: int, seconds: float, share: tuple[int, int] = (0, 1)
) -> Ceiling | None:
    """What these files give to so many threads in file order, through the page cache as it is; each is read once.

    The caller evicts them first where cold reads are meant. Where other nodes read at the same time, each reads its
    `share` (number, of how many). None where there is nothing to read.

    Raises:
        DatasetError: a file cannot be read.
    """
    pieces, buffers = _Pieces(pieces_of(files, share)), aligned_buffers(threads, PIECE_BYTES)
    try:
        with ThreadPoolExecutor(threads) as pool:
            start_s = time.perf_counter()
            deadline_s = start_s + seconds
            logs = list(pool.map(_read_pieces, [pieces] * threads, buffers, [deadline_s] * threads))
    except OSError as error:
        raise DatasetError(f"{error.filename or files[0].parent}: {error.strerror}") from error
    log = sorted((at_s - start_s, num_bytes) for own in logs for at_s, num_bytes in own)
    total = sum(num_bytes for _, num_bytes in log)
    if not total:
        return None
    took_s = log[-1][0]
    return Ceiling(total / took_s, slice_rates(log, took_s), total, took_s, threads, pieces.whole)


def slice_rates(log: Sequence[tuple[float, int]], seconds: float, slices: int = SLICES) -> tuple[float, ...]:
    """Rates over equal slices of the time, from bytes and when they had come; a piece counts where it ended."""
    sums = [0] * slices
    for at_s, num_bytes in log:
        sums[min(slices - 1, int(at_s / seconds * slices))] += num_bytes
    return tuple(found * slices / seconds for found in sums)


def _read_pieces(pieces: _Pieces, buffer: memoryview, deadline_s: float) -> list[tuple[float, int]]:
    """Read pieces until they or the time are over: when each had come, and its bytes."""
    log: list[tuple[float, int]] = []
    opened, descriptor = Path(), -1
    try:
        while time.perf_counter() < deadline_s and (piece := pieces.next()) is not None:
            path, start = piece
            if path != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                opened, descriptor = path, os.open(path, os.O_RDONLY)
            done = _fill(descriptor, buffer, start)
            log.append((time.perf_counter(), done))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return log


def _fill(descriptor: int, buffer: memoryview, start: int) -> int:
    """Bytes read from there until the buffer is full or the file ends."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], start + done)
        if not count:
            break
        done += count
    return done
