"""What a bucket gives to one client: objects written, read whole and by ranges, by their size and how many at once.

The probe writes objects of its own below the prefix, of content that cannot be compressed, and deletes them whatever
happens. Whether the server read from its disks or its memory cannot be seen.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, product
from statistics import median
from typing import Literal

from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects import client
from benchsuite.storage.objects.client import Bucket, Request, bucket_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.rawspeed.probe import MAX_SECONDS, Asked

Operation = Literal["put", "get", "range"]
OPERATIONS: tuple[Operation, ...] = ("put", "get", "range")
RANGES = 4
"""A range is such a part of an object."""
MAX_OBJECTS = 256
"""Objects of one size, at most; and as many as are asked for at once, at least."""
DELETED_AT_ONCE = 1000
NUMBER_BYTES = 8


@dataclass
class BucketCell:
    """One kind of request for objects of one size, and what it gave in each round."""

    operation: Operation
    object_bytes: int
    depth: int
    """Requests at once."""
    bytes_per_s: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)
    cpu_s_per_byte: list[float] = field(default_factory=list)
    """CPU seconds a byte of this process, with the client's threads."""
    latencies_s: list[float] = field(default_factory=list)
    """Latencies of every request in all rounds, sorted."""
    first_bytes_s: list[float] = field(default_factory=list)
    retries: int = 0

    @property
    def median(self) -> float:
        return median(self.bytes_per_s)


@dataclass(frozen=True)
class BucketProbe:
    """What a bucket gave."""

    path: ObjectPath
    cells: list[BucketCell]
    listed_per_s: list[float]
    """Names of objects, in each round."""

    def best(self, operation: Operation) -> BucketCell:
        """The fastest cell of a kind of request, by bytes."""
        return max((cell for cell in self.cells if cell.operation == operation), key=lambda cell: cell.median)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which a share of sorted ones lies; None of none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def check(asked: Asked) -> None:
    """Refuse what no probe of a bucket can measure.

    Raises:
        DatasetError: with what is allowed.
    """
    if asked.engine == "fio":
        raise DatasetError("engine fio: it reads files; of a bucket allowed: auto, own (the client obstore)")
    if min(asked.blocks) < NUMBER_BYTES:
        raise DatasetError(f"block {min(asked.blocks)}: allowed: objects of {NUMBER_BYTES} bytes and more")
    if asked.size_bytes < max(asked.blocks) * max(asked.depths):
        least = max(asked.blocks) * max(asked.depths)
        raise DatasetError(
            f"size {in_units(asked.size_bytes)}: {max(asked.depths)} requests at once for objects of "
            f"{max(asked.blocks)} bytes need {in_units(least)} at least: {-(-least >> 20)}MiB; "
            "or name smaller blocks or depths"
        )
    if not 0 < asked.seconds <= MAX_SECONDS:
        raise DatasetError(f"seconds {asked.seconds}: allowed: more than 0, at most {MAX_SECONDS:.0f}")


def probe(path: ObjectPath, asked: Asked, on_progress: Callable[[int, int], None]) -> BucketProbe:
    """Measure a bucket below a prefix; `on_progress` is told how many of all measurements are done.

    Raises:
        DatasetError: what is asked cannot be measured, the store refuses, or it gives other bytes than were written.
    """
    check(asked)
    bucket, prefix = bucket_of(path), (path / f"benchsuite-probe-{secrets.token_hex(6)}").key
    cells = [BucketCell(*key) for key in product(OPERATIONS, asked.blocks, asked.depths)]
    numbers = {size: _number_of(size, asked) for size in asked.blocks}
    keys = {size: [f"{prefix}/{size}-{number}" for number in range(numbers[size])] for size in asked.blocks}
    total, done, listed = asked.rounds * (len(cells) + 1), 0, []
    try:
        for size in asked.blocks:
            _write_and_compare(bucket, keys[size], size, max(asked.depths))
        for _ in range(asked.rounds):
            for cell in cells:
                _measure(bucket, keys[cell.object_bytes], cell, asked.seconds / asked.rounds)
                done += 1
                on_progress(done, total)
            listed.append(_listed_per_s(bucket, prefix, sum(numbers.values())))
            done += 1
            on_progress(done, total)
    finally:
        _delete(bucket, [key for each in keys.values() for key in each])
    return BucketProbe(path, cells, listed)


def _number_of(size: int, asked: Asked) -> int:
    most = min(MAX_OBJECTS, asked.size_bytes // len(asked.blocks) // size)
    return max(max(asked.depths), most)


def _content(size: int, number: int, random: bytes) -> bytes:
    """Random bytes that say which object they are of."""
    return number.to_bytes(NUMBER_BYTES, "little") + random[NUMBER_BYTES:]


def _write_and_compare(bucket: Bucket, keys: Sequence[str], size: int, depth: int) -> None:
    """Write all objects of a size, and read one of them back."""
    random = os.urandom(size)
    with ThreadPoolExecutor(depth) as pool:
        list(pool.map(lambda number: bucket.put(keys[number], _content(size, number, random)), range(len(keys))))
    last = len(keys) - 1
    if bytes(bucket.get(keys[last]).data) != _content(size, last, random):
        raise DatasetError(f"s3://{bucket.name}/{keys[last]}: other bytes came than were written")


def _measure(bucket: Bucket, keys: Sequence[str], cell: BucketCell, seconds: float) -> None:
    """Add a round to a cell: its threads ask for one object after another until the time is over."""
    size, random = cell.object_bytes, os.urandom(cell.object_bytes)
    part = max(1, size // RANGES)
    numbers, requests = count(), list[Request]()

    def ask() -> None:
        number = next(numbers)
        key = keys[number % len(keys)]
        if cell.operation == "put":
            bucket.put(key, random)
        elif cell.operation == "get":
            bucket.get(key)
        else:
            start = number % RANGES * part
            bucket.get_range(key, start, start + part) if start + part <= size else bucket.get_range(key, 0, part)

    def until(deadline_s: float) -> None:
        while time.perf_counter() < deadline_s:
            ask()

    before, client.watcher = client.watcher, requests.append
    try:
        with ThreadPoolExecutor(cell.depth) as pool:
            began_s, cpu_s = time.perf_counter(), time.process_time()
            list(pool.map(until, [began_s + seconds] * cell.depth))
            took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    finally:
        client.watcher = before
    _add(cell, requests, took_s, cpu_s)


def _add(cell: BucketCell, requests: Sequence[Request], took_s: float, cpu_s: float) -> None:
    num_bytes = sum(request.num_bytes for request in requests)
    cell.bytes_per_s.append(num_bytes / took_s)
    cell.requests_per_s.append(len(requests) / took_s)
    cell.cpu_s_per_byte.append(cpu_s / num_bytes)
    cell.latencies_s = sorted([*cell.latencies_s, *(request.seconds for request in requests)])
    first = [request.first_byte_s for request in requests if request.first_byte_s is not None]
    cell.first_bytes_s = sorted([*cell.first_bytes_s, *first])
    cell.retries += sum(request.retries for request in requests)


def _listed_per_s(bucket: Bucket, prefix: str, expected: int) -> float:
    """Names a second of a listing, which must hold all that was written."""
    began_s = time.perf_counter()
    found = sum(1 for _ in bucket.listing(prefix))
    took_s = time.perf_counter() - began_s
    if found != expected:
        raise DatasetError(f"s3://{bucket.name}/{prefix}: {found} objects are listed where {expected} were written")
    return found / took_s


def _delete(bucket: Bucket, keys: Sequence[str]) -> None:
    for batch in _batches(keys):
        bucket.delete(batch)


def _batches(keys: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), DELETED_AT_ONCE):
        yield list(keys[start : start + DELETED_AT_ONCE])
