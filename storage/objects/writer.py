"""An object written as a file is: its parts are on their way while more of it is written."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from queue import Full, Queue
from typing import Any

from benchsuite.storage.objects.client import PART_BYTES, PARTS_AT_ONCE, bucket_of
from benchsuite.storage.objects.path import ObjectPath

LOOK_S = 0.1
"""How often a writer that waits for the store looks whether its upload has failed."""


class ObjectWriter(io.RawIOBase):
    """A new object. It is there, whole, when `close` returns; left by an error, it is not there at all.

    Memory holds the parts that are on their way, whatever the object's size.

    Raises, in all methods:
        DatasetError: the store does not take it.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._size, self._buffer, self._given_up = 0, bytearray(), False
        self._parts: Queue[bytes | None] = Queue(PARTS_AT_ONCE)
        self._thread = ThreadPoolExecutor(1)
        self._upload = self._thread.submit(bucket_of(path).put, path.key, self._sent())

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        """Take bytes; those of whole parts are sent."""
        given = memoryview(data).cast("B")
        for start in range(0, len(given), PART_BYTES):
            self._buffer += given[start : start + PART_BYTES]
            while len(self._buffer) >= PART_BYTES:
                self._give(bytes(self._buffer[:PART_BYTES]))
                del self._buffer[:PART_BYTES]
        self._size += len(given)
        return len(given)

    def close(self) -> None:
        """Send the rest and wait until the store has all; after an error, let nothing come of it."""
        if self.closed:
            return
        super().close()
        try:
            if not self._given_up:
                self._give(bytes(self._buffer))
            self._give(None)
            self._upload.result()
        finally:
            self._thread.shutdown()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._given_up = kind is not None
        with suppress(Exception) if self._given_up else nullcontext():  # what went wrong first is told
            self.close()

    def _give(self, part: bytes | None) -> None:
        """Hand a part, or None for the end, to the upload, which waits for the store."""
        while True:
            if self._upload.done():
                self._upload.result()  # raises what the store said
            with suppress(Full):
                return self._parts.put(part, timeout=LOOK_S)

    def _sent(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            yield part
        if self._given_up:
            raise EOFError("not all was written")
