"""The raw ceiling of a path: reads by pattern, block size and depth, and files made, opened and removed per second.

The probe makes files of its own below the path, of content that cannot be compressed, and removes them whatever
happens. Reads go past the page cache by O_DIRECT; where a file system does not take it, pages are evicted first and no
block is read twice. What a server keeps in its memory cannot be seen.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.observe import page_cache
from benchsuite.storage.rawspeed import fio
from benchsuite.storage.rawspeed.plain_reader import (
    ALIGNMENT_BYTES,
    PATTERNS,
    Deadline,
    Pattern,
    aligned_buffers,
    ending_early,
    offsets,
    read_file,
    takes_direct,
)
from benchsuite.storage.rawspeed.plain_reader import Ceiling as Ceiling
from benchsuite.storage.rawspeed.plain_reader import read_ceiling as read_ceiling

Access = Literal["direct", "buffered", "memory"]
Engine = Literal["fio", "own"]
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
DEFAULT_BLOCKS = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
DEFAULT_DEPTHS = (1, 4, 16)
ROUNDS = 3
"""Each cell is measured so often, all cells in turn: machines drift."""
RESERVE_BYTES = 64 << 20
"""Left free on the disk beside what is written."""
LOCK_BOUND = 0.5
"""Above that share of the time in Python, our own reads may be what limits a cell."""
CHUNK_BYTES = 16 << 20
OPERATIONS = ("create", "open", "unlink")
MAX_FILES = 20_000
MAX_SECONDS = 86_400.0
"""The longest that a cell may be measured: a day."""


@dataclass(frozen=True)
class Asked:
    """What a probe measures."""

    size_bytes: int = 10**9
    seconds: float = 2.0
    """A cell, over its rounds."""
    blocks: tuple[int, ...] = DEFAULT_BLOCKS
    depths: tuple[int, ...] = DEFAULT_DEPTHS
    engine: Literal["auto", "fio", "own"] = "auto"
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Cell:
    """One way to read, and what it gave in each round."""

    pattern: Pattern
    block_bytes: int
    depth: int
    """Threads that read at once; each its own share of the file, or blocks of everywhere."""
    bytes_per_s: tuple[float, ...] = ()
    resident_before: tuple[float | None, ...] = ()
    lock_fraction: tuple[float, ...] = ()
    """Share of the time that our own reads spent in Python; of fio there is none."""

    @property
    def median(self) -> float:
        return median(self.bytes_per_s)


@dataclass(frozen=True)
class NameCell:
    """One operation on many empty files, and what it gave in each round."""

    operation: str
    depth: int
    per_s: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return median(self.per_s)


@dataclass(frozen=True)
class Probe:
    """What a path gave."""

    path: Path
    access: Access
    engine: Engine
    size_bytes: int
    cells: tuple[Cell, ...]
    names: tuple[NameCell, ...]

    def best(self, pattern: Pattern) -> Cell:
        """The fastest cell of a pattern."""
        return max((cell for cell in self.cells if cell.pattern == pattern), key=lambda cell: cell.median)

    def most_reads(self) -> Cell:
        """The random cell with the most reads per second."""
        found = [cell for cell in self.cells if cell.pattern == "random"]
        return max(found, key=lambda cell: cell.median / cell.block_bytes)

    def names_per_s(self, operation: str) -> float:
        """The best rate of an operation over depths."""
        return self.best_names(operation).median

    def best_names(self, operation: str) -> NameCell:
        """The fastest cell of an operation on names."""
        return max((cell for cell in self.names if cell.operation == operation), key=lambda cell: cell.median)


def check(asked: Asked) -> Engine:
    """The engine to use.

    Raises:
        DatasetError: what is asked cannot be measured.
    """
    odd = [block for block in asked.blocks if block <= 0 or block % ALIGNMENT_BYTES]
    if odd or not asked.blocks:
        raise DatasetError(f"block {', '.join(map(str, odd)) or 'none'}: allowed: multiples of {ALIGNMENT_BYTES} bytes")
    if not asked.depths or min(asked.depths) < 1:
        raise DatasetError(f"depth {list(asked.depths)}: allowed: 1 and more")
    least = max(asked.blocks) * max(asked.depths)
    if asked.size_bytes < least:
        raise DatasetError(
            f"size {in_units(asked.size_bytes)}: {max(asked.depths)} readers of {max(asked.blocks)}-byte blocks need "
            f"{in_units(least)} at least: {-(-least >> 20)}MiB; or name smaller blocks or depths"
        )
    if not 0 < asked.seconds <= MAX_SECONDS:
        raise DatasetError(f"seconds {asked.seconds}: allowed: more than 0, at most {MAX_SECONDS:.0f}")
    if asked.engine == "fio" and not fio.installed():
        raise DatasetError("engine fio: fio is not installed; allowed: own, or install it (Debian: apt install fio)")
    return "own" if asked.engine == "own" or not fio.installed() else "fio"


def probe(path: Path, asked: Asked, kind: str | None, on_progress: Callable[[int, int], None]) -> Probe:
    """Measure a folder of a file system of this kind (as /proc/self/mounts names it).

    `on_progress` is told how many of all measurements are done.

    Raises:
        DatasetError: no such folder, it cannot be written, its disk is too full, or fio failed.
    """
    engine = check(asked)
    size = asked.size_bytes // max(asked.blocks) * max(asked.blocks)
    with temporary_below(path, "benchsuite-probe", size) as folder:
        file = folder / "data"
        write_incompressible(file, size)
        access: Access = "memory" if kind in IN_MEMORY else "direct" if takes_direct(file) else "buffered"
        cells = [Cell(*key) for key in product(PATTERNS, asked.blocks, asked.depths)]
        ends = sorted({min(asked.depths), max(asked.depths)})
        names = [NameCell(operation, depth) for depth in ends for operation in OPERATIONS]
        buffers = aligned_buffers(max(asked.depths), max(asked.blocks)) if engine == "own" else []
        total, done = asked.rounds * (len(cells) + len(ends)), 0
        for _ in range(asked.rounds):
            for number, cell in enumerate(cells):
                cells[number] = measured(file, cell, access, engine, asked.seconds / asked.rounds, buffers)
                done += 1
                on_progress(done, total)
            for depth in ends:
                rates = name_rates(folder, depth, asked.seconds / asked.rounds)
                names = [_with_rate(cell, rates) if cell.depth == depth else cell for cell in names]
                done += 1
                on_progress(done, total)
    return Probe(path, access, engine, size, tuple(cells), tuple(names))


def _with_rate(cell: NameCell, rates: dict[str, float]) -> NameCell:
    return replace(cell, per_s=(*cell.per_s, rates[cell.operation]))


def measured(
    file: Path, cell: Cell, access: Access, engine: Engine, seconds: float, buffers: Sequence[memoryview]
) -> Cell:
    """The cell with one more round, of a file that was evicted before."""
    page_cache.evict([file])
    resident = page_cache.residency([file]).fraction
    direct, again = access == "direct", access != "buffered"
    lock: tuple[float, ...] = ()
    if engine == "fio":
        rate = fio.read_file(file, cell.pattern, cell.block_bytes, cell.depth, seconds, direct, again)
    else:
        plan = offsets(cell.pattern, file.stat().st_size, cell.block_bytes, cell.depth)
        views = [buffer[: cell.block_bytes] for buffer in buffers]
        found = read_file(file, plan, views, seconds, direct, again)
        rate, lock = found.bytes_per_s, (found.lock_s / found.seconds,)
    return replace(
        cell,
        bytes_per_s=(*cell.bytes_per_s, rate),
        resident_before=(*cell.resident_before, resident),
        lock_fraction=cell.lock_fraction + lock,
    )


def name_rates(folder: Path, depth: int, seconds: float) -> dict[str, float]:
    """Operations per second by so many threads in one folder.

    Files are made for a third of the time, then all are opened and removed; their names and inodes are in the client's
    memory by then.
    """
    place = folder / f"names-{secrets.token_hex(4)}"
    place.mkdir()
    names = [[f"{place}/{thread}-{number}" for number in range(MAX_FILES // depth)] for thread in range(depth)]
    rates = {}
    with ThreadPoolExecutor(depth) as pool, ending_early() as deadline:
        deadline.at_s = time.perf_counter() + seconds / 3
        for operation, work in zip(OPERATIONS, (_create, _open, os.unlink), strict=True):
            start_s = time.perf_counter()
            counts = list(pool.map(_each, [work] * depth, names, [deadline] * depth))
            rates[operation] = sum(counts) / (time.perf_counter() - start_s)
            names = [own[:count] for own, count in zip(names, counts, strict=True)]
            deadline.at_s = float("inf")
    place.rmdir()
    return rates


def _each(work: Callable[[str], None], names: Sequence[str], deadline: Deadline) -> int:
    """Do it to one name after another until the time is over; how many."""
    done = 0
    for name in names:
        work(name)
        done += 1
        if time.perf_counter() >= deadline.at_s:
            break
    return done


def _create(name: str) -> None:
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _open(name: str) -> None:
    descriptor = os.open(name, os.O_RDONLY)
    os.fstat(descriptor)
    os.close(descriptor)


def check_folder(path: Path) -> None:
    """Refuse what is no folder.

    Raises:
        DatasetError: it is none, or this user may not look.
    """
    with told(path):
        if not path.is_dir():
            raise DatasetError(f"{path}: {'is no folder' if path.exists() else 'no such folder'}; name one that exists")


@contextmanager
def temporary_below(path: Path, name: str, needed_bytes: int) -> Iterator[Path]:
    """A folder of one's own below `path`, removed at the end; one that a killed process left is removed as well.

    Raises:
        DatasetError: `path` is no folder that can be written, or its disk has not enough room; also later, where
            something in the block cannot be read or written.
    """
    check_folder(path)
    with told(f"{path}: cannot be written"):
        remove_abandoned(path / name)
        free = shutil.disk_usage(path).free
        if needed_bytes + RESERVE_BYTES > free:
            raise DatasetError(
                f"{path}: needs {in_units(needed_bytes)} and {in_units(RESERVE_BYTES)} to spare, "
                f"its disk has {in_units(free)} free"
            )
        folder = partial_folder(path / name)
        folder.mkdir(0o755)  # for no umask may others write it: names in it are foreseeable
    try:
        yield folder
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_incompressible(file: Path, num_bytes: int) -> None:
    """A file of random bytes, flushed to the disk."""
    rng = np.random.default_rng()
    with file.open("wb", buffering=0) as out:
        left = num_bytes
        while left:
            left -= out.write(rng.bytes(min(CHUNK_BYTES, left)))
        os.fsync(out.fileno())
