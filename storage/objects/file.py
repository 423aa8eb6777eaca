"""An object read as a file is: by ranges as they are asked for, or from its beginning to its end, some blocks ahead."""

import io
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.client import Bucket, Content, bucket_of
from benchsuite.storage.objects.path import ObjectPath

STREAM_BYTES, STREAM_AHEAD = 8 << 20, 2
"""Blocks of an object that is read in order, and how many are asked for before they are wanted."""
BLOCK_BYTES, SMALL_BYTES = 1 << 17, 1 << 14
"""Blocks that what is read in small pieces comes from, and up to which size a range is one of these pieces.

A store takes about as long for a block as for a field of some bytes, and the next fields may lie in it.
"""
KEPT_BYTES = 4 << 20
"""Bytes of blocks that stay in memory."""
OBJECTS_AHEAD = 2
"""Whole objects that are asked for before they are wanted; of small ones, which a thread gets together, so many times
as many: handing one request to a thread and back takes as long as some tens of kilobytes."""
TOGETHER_BYTES, MOST_TOGETHER = 1 << 20, 8
"""Bytes and number of the objects that one thread asks for one after another."""
THREADS = 16
"""Requests that one process has under way ahead of its readers."""


class ObjectFile:
    """An open object. All that is read is of the one that was opened: of a changed one nothing is given out.

    Args:
        path: which.
        in_order: it is read from its beginning to its end, so that blocks are asked for ahead.

    Raises, in all methods:
        DatasetError: it is missing, changed or shorter, or the store does not give it.
    """

    def __init__(self, path: ObjectPath, in_order: bool = False) -> None:
        self.path, self._in_order = path, in_order
        self._bucket, self._block_bytes = bucket_of(path), STREAM_BYTES if in_order else BLOCK_BYTES
        self._blocks: OrderedDict[int, Future[Content]] = OrderedDict()
        info = self._bucket.head(path.key)
        self.size, self._etag = info.num_bytes, info.etag

    def read_at(self, offset: int, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Fill a buffer from `offset` on."""
        return self._near(offset, buffer, SMALL_BYTES)

    def peek(self, num_bytes: int, offset: int) -> bytes:
        """Some bytes that lie near others that are wanted; fewer at the end."""
        buffer = np.empty(max(0, min(num_bytes, self.size - offset)), np.uint8)
        return self._from_blocks(offset, buffer).tobytes()

    def array(self, dtype: "np.dtype[Any]") -> "Ranges":
        """The whole content as numbers, of which those are read that are asked for."""
        return Ranges(self, dtype)

    def stream(self) -> io.RawIOBase:
        """The object for libraries that read Python's files."""
        return Placed(self.size, lambda place, wanted: self._near(place, wanted, BLOCK_BYTES - 1))

    def chunks(self) -> Iterator[memoryview]:
        """The content in order."""
        for number in range(-(-self.size // self._block_bytes)):
            yield self._block(number).data

    def close(self) -> None:
        """Let go of what was read ahead."""
        for block in self._blocks.values():
            block.cancel()
        self._blocks.clear()

    def __enter__(self) -> "ObjectFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _near(self, offset: int, buffer: npt.NDArray[np.uint8], small_bytes: int) -> npt.NDArray[np.uint8]:
        """Fill a buffer: what is small, or read in order, from blocks."""
        if self._in_order or len(buffer) <= small_bytes:
            return self._from_blocks(offset, buffer)
        found = self._bucket.get_range(self.path.key, offset, offset + len(buffer), self._etag)
        buffer[:] = np.frombuffer(found.data, np.uint8)
        return buffer

    def _from_blocks(self, offset: int, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        done = 0
        while done < len(buffer):
            number, start = divmod(offset + done, self._block_bytes)
            part = np.frombuffer(self._block(number).data, np.uint8)[start : start + len(buffer) - done]
            if not len(part):  # past the end: the store says so in its words
                self._bucket.get_range(self.path.key, offset + done, offset + len(buffer), self._etag)
                raise AssertionError(f"{self.path} grew")
            buffer[done : done + len(part)] = part
            done += len(part)
        return buffer

    def _block(self, number: int) -> Content:
        """A block's content; those after it are on their way where the object is read in order."""
        last = max(0, -(-self.size // self._block_bytes) - 1)
        ahead = STREAM_AHEAD if self._in_order else 0
        for wanted in range(number, min(number + ahead, max(last, number)) + 1):
            if wanted not in self._blocks:
                self._blocks[wanted] = self._asked(wanted)
        self._blocks.move_to_end(number)
        while len(self._blocks) > ahead + max(1, KEPT_BYTES // self._block_bytes):
            self._blocks.popitem(last=False)[1].cancel()
        return self._blocks[number].result()

    def _asked(self, number: int) -> Future[Content]:
        start = number * self._block_bytes
        end = min(start + self._block_bytes, self.size)
        if start >= end:
            empty: Future[Content] = Future()
            empty.set_result(Content(memoryview(b""), self._etag, self.size))
            return empty
        return _pool(os.getpid()).submit(self._bucket.get_range, self.path.key, start, end, self._etag)


class Ranges:
    """Numbers of an object, read when a slice of them is asked for."""

    def __init__(self, file: ObjectFile, dtype: "np.dtype[Any]") -> None:
        self._file, self.dtype, self.itemsize = file, dtype, dtype.itemsize

    def __len__(self) -> int:
        return self._file.size // self.itemsize

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        start, end, _ = wanted.indices(len(self))
        size = max(0, end - start) * self.itemsize
        return self._file.read_at(start * self.itemsize, np.empty(size, np.uint8)).view(self.dtype)


class Placed(io.RawIOBase):
    """One of Python's files over what can be read at any place.

    Args:
        size: bytes that it has.
        fill: fills a buffer from a place on; never beyond the end.
    """

    def __init__(self, size: int, fill: Callable[[int, npt.NDArray[np.uint8]], object]) -> None:
        self._size, self._fill, self._place = size, fill, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence])
        return self._place

    def readinto(self, buffer: Any) -> int:
        wanted = np.frombuffer(memoryview(buffer).cast("B"), np.uint8)
        wanted = wanted[: max(0, min(len(wanted), self._size - self._place))]
        self._fill(self._place, wanted)
        self._place += len(wanted)
        return len(wanted)


def most_ahead_bytes(in_order: bool, mean_bytes: float) -> float:
    """What a reader may have asked for before it is wanted: blocks of an object read in order, or whole objects."""
    if in_order:
        return float(STREAM_BYTES * (STREAM_AHEAD + 1))
    return (OBJECTS_AHEAD + 1) * max(float(TOGETHER_BYTES), mean_bytes)


def contents(bucket: Bucket, keys: Iterable[str], mean_bytes: float) -> Iterator[Content]:
    """The contents of objects in order; those of the next are on their way, small ones several to a thread.

    Raises:
        DatasetError: the store does not give one; those before it have been given out.
    """
    together, left = max(1, min(MOST_TOGETHER, int(TOGETHER_BYTES / max(mean_bytes, 1)))), iter(keys)
    asked: deque[Future[list[Content | DatasetError]]] = deque()
    for some in iter(lambda: [*islice(left, together)], []):
        asked.append(_pool(os.getpid()).submit(_one_after_another, bucket, some))
        if len(asked) > OBJECTS_AHEAD:
            yield from _given(asked.popleft())
    for each in asked:
        yield from _given(each)


def _one_after_another(bucket: Bucket, keys: list[str]) -> list[Content | DatasetError]:
    """Ask in this thread; the first error is the last that is there."""
    found: list[Content | DatasetError] = []
    for key in keys:
        try:
            found.append(bucket.get(key))
        except DatasetError as error:
            return [*found, error]
    return found


def _given(asked: Future[list[Content | DatasetError]]) -> Iterator[Content]:
    for found in asked.result():
        if isinstance(found, DatasetError):
            raise found
        yield found


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """The threads of this process; one that was forked has none of its parent's."""
    return ThreadPoolExecutor(THREADS)
