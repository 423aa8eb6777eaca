"""Copy files by many threads, checked by their digests; their sources leave the page cache as they found it.

A file is written under a name of its own and renamed once it is whole and checked, so that what has the file's name is
the file. Reads and writes release Python's lock and go through one small buffer per thread, which stays in the cache
of its core. The flushing of large parts is begun at once.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from benchsuite.inside.files import open_plain
from benchsuite.storage.dataset.local_path import open_regular
from benchsuite.storage.dataset.manifest import file_digest, refuse_size
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.write_behind import BLOCK_BYTES, begin_to_flush
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe.page_cache import absent

BUFFER_BYTES = 4 << 20
CHUNK_BYTES = 64 << 20
"""What one thread copies at a time."""
OBJECT_BYTES = 8 << 20
"""What is asked of an object store at a time."""
SUFFIX = ".copy"
Copied = Callable[[int], None]
"""Told of bytes as they are written."""
_own = threading.local()


def no_matter(num_bytes: int) -> None:
    """Who does not want to be told."""


def _buffer() -> memoryview:
    """This thread's buffer, used again and again: its pages exist already.

    A forked process inherits that of the thread that forked, so the memory must be private: `mmap.mmap(-1, n)` is not.
    """
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(bytearray(BUFFER_BYTES))
    found: memoryview = _own.buffer
    return found


class SourceFile:
    """A file that is read and then leaves the page cache, where it was not in it before.

    Where the kernel hides from this user what was in it, all of it is left there, and `hidden` is true.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor, self.size = open_regular(path)
        self._absent = absent(self.descriptor, path, self.size)

    @property
    def hidden(self) -> bool:
        """Whether it cannot be told what was in the page cache."""
        return self._absent is None

    def copy(self, target: int, start: int, end: int, told: Copied = no_matter) -> None:
        """Copy a part into an open file, to the same place.

        Raises:
            DatasetError: the file ends before.
        """
        buffer, place = _buffer(), start
        while place < end:
            count = os.preadv(self.descriptor, [buffer[: min(BUFFER_BYTES, end - place)]], place)
            if not count:
                raise DatasetError(f"{self.path}: ends at byte {place}, {end - place} bytes short: truncated")
            written = 0
            while written < count:
                written += os.pwrite(target, buffer[written:count], place + written)
            place += count
            told(count)
        if end - start >= BLOCK_BYTES:
            begin_to_flush(target, start, end - start)
        self.let_go(start, end)

    def let_go(self, start: int, end: int) -> None:
        """Drop from the page cache what reading this part has brought there."""
        for first, last in self._absent or ():
            if max(first, start) < min(last, end):
                low, high = max(first, start), min(last, end)
                os.posix_fadvise(self.descriptor, low, high - low, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Drop what the kernel has read ahead, too."""
        self.let_go(0, self.size)
        os.close(self.descriptor)


class SourceObject:
    """An object that is copied by ranges."""

    hidden = False

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self._bucket = bucket_of(path)
        info = self._bucket.head(path.key)
        self.size, self._etag = info.num_bytes, info.etag

    def copy(self, target: int, start: int, end: int, told: Copied = no_matter) -> None:
        """Copy a part into an open file, to the same place.

        Raises:
            DatasetError: the object ends before, has changed, or the store does not give it.
        """
        for place in range(start, end, OBJECT_BYTES):
            stop = min(place + OBJECT_BYTES, end)
            content = self._bucket.get_range(self.path.key, place, stop, self._etag).data
            written = 0
            while written < len(content):
                written += os.pwrite(target, content[written:], place + written)
            told(len(content))
        if end - start >= BLOCK_BYTES:
            begin_to_flush(target, start, end - start)

    def close(self) -> None:
        """Nothing is open."""


def source_of(path: Path) -> SourceFile | SourceObject:
    """What is copied, opened."""
    return SourceObject(path) if isinstance(path, ObjectPath) else SourceFile(path)


@dataclass(frozen=True)
class FileCopy:
    """One file to copy; `num_bytes` and `digest` are what is known of it."""

    source: Path
    target: Path
    num_bytes: int | None = None
    digest: str | None = None

    @property
    def making(self) -> Path:
        """Return the copy's name until it is whole."""
        return self.target.with_name(f".{self.target.name}{SUFFIX}")

    def check(self, max_threads: int = blake3.AUTO) -> None:
        """Refuse, and remove, a copy whose content is not what is known.

        Raises:
            DatasetError: it is not.
        """
        if self.digest is not None and file_digest(self.making, self.digest, max_threads) != self.digest:
            self.making.unlink()
            raise DatasetError(f"{self.source}: its copy has another checksum: damaged there, or on the way")

    def name(self) -> None:
        """Rename the copy, which is whole and checked."""
        self.making.rename(self.target)


def copy_file(copy: FileCopy, target: int, told: Copied = no_matter) -> bool:
    """Copy one file into the open file `copy.making`, in this thread, and check it; it has yet to be named.

    Whether it could not be told what was in the page cache of its source.
    """
    source = source_of(copy.source)
    try:
        refuse_size(copy.source, source.size, copy.num_bytes)
        os.ftruncate(target, 0)
        source.copy(target, 0, source.size, told)
    finally:
        source.close()
    copy.check(max_threads=1)  # a forked reader has none of the threads that its parent had
    return source.hidden


def _size_of(path: Path) -> int:
    if isinstance(path, ObjectPath):
        return bucket_of(path).head(path.key).num_bytes
    return path.stat().st_size


class _Transfer:
    """One file on its way, in chunks of any order by any thread; who copies the last one finishes it."""

    def __init__(self, copy: FileCopy, told: Copied) -> None:
        self._copy, self._told, self._lock = copy, told, threading.Lock()
        self._source: SourceFile | SourceObject | None = None
        self._target = -1
        size = _size_of(copy.source) if copy.num_bytes is None else copy.num_bytes
        self.chunks = [(start, min(start + CHUNK_BYTES, size)) for start in range(0, max(size, 1), CHUNK_BYTES)]
        self._left = len(self.chunks)
        self.hidden = False

    def run(self, start: int, end: int) -> None:
        """Copy one chunk."""
        with self._lock:
            if self._source is None:
                self._source = source_of(self._copy.source)
                refuse_size(self._copy.source, self._source.size, self._copy.num_bytes)
                self._target = open_plain(self._copy.making, os.O_RDWR | os.O_CREAT)
                os.ftruncate(self._target, 0)
        self._source.copy(self._target, start, end, self._told)
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self.close()
            self._copy.check()
            self._copy.name()

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            if self._source is not None:
                self.hidden = self._source.hidden
                self._source.close()
                if self._target >= 0:
                    os.close(self._target)
                self._source = None


def copy_files(copies: Iterable[FileCopy], threads: int, told: Copied = no_matter) -> bool:
    """Copy files by so many threads, large ones by several at once.

    Whether it could not be told, of one of them, what was in the page cache of its source.

    Raises:
        DatasetError: one is not what is known of it; those that were finished stay.
    """
    transfers = [_Transfer(copy, told) for copy in copies]
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(transfer.run, *chunk) for transfer in transfers for chunk in transfer.chunks]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
            for transfer in transfers:
                transfer.close()
    for future in futures:
        if not future.cancelled():
            future.result()
    return any(transfer.hidden for transfer in transfers)
