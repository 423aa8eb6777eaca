"""How many empty files a folder takes per second: made, opened and looked at, removed."""

import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchsuite.storage.rawspeed.plain_reader import Deadline, ending_early

OPERATIONS = ("create", "open", "unlink")
MAX_FILES = 20_000


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
