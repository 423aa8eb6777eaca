"""A sample as it is stored, its digest, and reading into memory that is used again."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from benchsuite.storage.dataset.local_path import open_regular
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath

Array = npt.NDArray[Any]
Value = bytes | memoryview | Array
"""A field of a sample: encoded bytes (a JPEG, a label in digits) or an array."""
Allocate = Callable[[str, int], npt.NDArray[np.uint8]]
"""Memory for what is read: `allocate(name, num_bytes)` gives at least that many bytes."""


def fresh(name: str, num_bytes: int) -> npt.NDArray[np.uint8]:
    """New memory for every sample."""
    return np.empty(num_bytes, np.uint8)


AHEAD_BYTES = 8 << 20
"""Size from which on what is not in memory is asked for at once: read-ahead would fetch it in smaller pieces."""
HEADER_BYTES = 4096
"""What stands around a sample's content in a file, at most, for memory to be large enough at once."""


def reserved(num_bytes: int, largest: int) -> npt.NDArray[np.uint8]:
    """Memory for the largest sample where the address space holds it; what is not touched occupies nothing."""
    try:
        return np.empty(max(num_bytes, largest + HEADER_BYTES), np.uint8)
    except MemoryError:
        return np.empty(num_bytes, np.uint8)


class Recycled:
    """Memory for what is read, the same for every sample; `largest` is the number of bytes of the largest one."""

    def __init__(self, largest: int = 0) -> None:
        self._largest = largest
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}

    def __call__(self, name: str, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return at least `num_bytes` bytes, whose content is lost at the next call with this name."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < num_bytes:
            self._buffers.pop(name, None)
            buffer = self._buffers[name] = reserved(num_bytes, self._largest)
        return buffer


@dataclass(frozen=True)
class Sample:
    """One sample as it is stored: fields by name, such as {"image": JPEG bytes, "label": b"12"}, or arrays."""

    key: str
    fields: Mapping[str, Value]
    index: int = -1
    """Row of the dataset's index; -1 before it is stored."""
    source: str = ""
    """The file it came from, for error messages."""
    digest: str = ""
    """The sample's content digest, where that is known already."""
    compressed_bytes: int | None = None
    """What it occupies where the format compresses it."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of all fields as stored."""
        if self.compressed_bytes is not None:
            return self.compressed_bytes
        return sum(num_bytes(value) for value in self.fields.values())


def num_bytes(value: Value) -> int:
    """Bytes of a field."""
    return value.nbytes if isinstance(value, np.ndarray | memoryview) else len(value)


def content_digest(sample: Sample) -> str:
    """Digest (blake2b, 128 bits, hex) of a sample's fields, names and lengths included.

    Of an array it takes name, dtype, shape and the BLAKE3 digest of its bytes in C order: volumes are large, and
    BLAKE3 is five times faster.
    """
    if sample.digest:
        return sample.digest
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(sample.fields):
        value = sample.fields[name]
        if isinstance(value, np.ndarray):
            digest.update(f"{name}:{value.dtype.str}:{value.shape}:".encode())
            digest.update(blake3(np.ascontiguousarray(value).data.cast("B")).digest())
        else:
            digest.update(f"{name}:{num_bytes(value)}:".encode())
            digest.update(value)
    return digest.hexdigest()


def read_whole(path: Path, name: str, allocate: Allocate) -> npt.NDArray[np.uint8]:
    """A file's or object's content, in the memory that `allocate` gives: one open and, mostly, one read.

    Raises:
        DatasetError: it is missing, may not be read, or shrinks meanwhile.
    """
    if isinstance(path, ObjectPath):
        return copied(bucket_of(path).get(path.key).data, name, allocate)
    try:
        descriptor, size = open_regular(path)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    try:
        return read_at(descriptor, 0, allocate(name, size)[:size], path)
    finally:
        os.close(descriptor)


def copied(content: memoryview, name: str, allocate: Allocate) -> npt.NDArray[np.uint8]:
    """Bytes in the memory that `allocate` gives."""
    memory = allocate(name, len(content))[: len(content)]
    memory[:] = np.frombuffer(content, np.uint8)
    return memory


def _read_what_is_there(descriptor: int, offset: int, view: memoryview) -> int:
    """Read what lies in memory from `offset` on, and have the kernel fetch the rest all at once; the bytes read."""
    try:
        done = os.preadv(descriptor, [view], offset, os.RWF_NOWAIT)
    except OSError:  # nothing is in memory, or the file system cannot tell
        done = 0
    if done < len(view):
        os.posix_fadvise(descriptor, offset + done, len(view) - done, os.POSIX_FADV_WILLNEED)
    return done


def read_at(descriptor: int, offset: int, buffer: npt.NDArray[np.uint8], path: Path) -> npt.NDArray[np.uint8]:
    """Fill a buffer from an open file at `offset`.

    Raises:
        DatasetError: the file ends before, or cannot be read.
    """
    view, done = buffer.data, 0
    try:
        if len(view) >= AHEAD_BYTES:
            done = _read_what_is_there(descriptor, offset, view)
        while done < len(view):
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if not count:
                raise DatasetError(f"{path}: ends at byte {offset + done}, {len(view) - done} bytes short: truncated")
            done += count
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    return buffer
