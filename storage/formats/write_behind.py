"""Writing behind: what was written goes to the disk while more is made, and then leaves the page cache.

Else a large dataset fills the memory with pages that wait for the disk. Pages used again are also written to in a
third of the time where a virtual machine has to be given each new one by its host.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from operator import length_hint
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from benchsuite.storage.dataset.manifest import IndexRow, index_row
from benchsuite.storage.dataset.sample import Sample, num_bytes
from benchsuite.storage.dataset.shards import batched, shard_sizes
from benchsuite.storage.errors import DatasetError

BLOCK_BYTES = 32 << 20
"""Less than that is left to the kernel."""
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_FAILURES = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_libc = ctypes.CDLL(None, use_errno=True)


def begin_to_flush(descriptor: int, start: int = 0, length: int = 0) -> None:
    """Have the kernel write a part of a file (0: all from `start` on) to the disk; a hint, whose failure is none."""
    _sync_range(descriptor, start, length, _WRITE)


def _sync_range(descriptor: int, start: int, length: int, flags: int) -> int:
    """The number of the error; 0 without."""
    failed = _libc.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(length), flags)
    return ctypes.get_errno() if failed else 0


class WriteBehind:
    """Takes parts of files on their way to the disk: each is begun at once, and waited for when the next one comes."""

    def __init__(self) -> None:
        self._begun: tuple[int, int, int] | None = None

    def written(self, descriptor: int, start: int, end: int) -> None:
        """Note that these bytes of an open file stand, and will not be read soon."""
        if end - start < BLOCK_BYTES:
            return
        begin_to_flush(descriptor, start, end - start)
        own = os.dup(descriptor)
        self._settle()
        self._begun = own, start, end - start

    def _settle(self) -> None:
        if self._begun is None:
            return
        (descriptor, start, length), self._begun = self._begun, None
        try:
            number = _sync_range(descriptor, start, length, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
            if number in _FAILURES:
                raise OSError(number, os.strerror(number))
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._settle()


class Shard:
    """A file written from its beginning to its end, on its way to the disk, with the digest of its content."""

    def __init__(self, file: BinaryIO, behind: WriteBehind) -> None:
        self.bytes, self._begun, self._head_bytes = 0, 0, 0
        self._file, self._behind, self._digest = file, behind, blake3()

    def write(self, parts: Iterable[bytes | memoryview]) -> None:
        """Append these parts."""
        for part in parts:
            self._file.write(part)
            self._digest.update(part)
            self.bytes += num_bytes(part)
        if self.bytes - self._begun >= BLOCK_BYTES:
            self._file.flush()
            self._behind.written(self._file.fileno(), self._begun, self.bytes)
            self._begun = self.bytes

    def begin(self, head_bytes: int) -> int:
        """Leave so much room for a head that is written last; where the content begins."""
        self._file.seek(head_bytes)
        self.bytes = self._begun = self._head_bytes = head_bytes
        return head_bytes

    def write_head(self, head: bytes) -> None:
        """Write what stands before the content; zeros follow where there is more room."""
        head = head.ljust(self._head_bytes, b"\0")
        self._file.seek(0)
        self._file.write(head)
        self._digest.update(head)

    @property
    def digest(self) -> str:
        """The digest of the content so far, as `file_digest` gives it."""
        head = f"-from-{self._head_bytes}" if self._head_bytes else ""
        return f"blake3{head}:{self._digest.hexdigest(16)}"


class NewShard(NamedTuple):
    """A shard on its way, and the samples that it is to hold: `size` of them, or fewer where these are the last."""

    name: str
    shard: Shard
    samples: Iterator[Sample]
    size: int


def new_shards(
    folder: Path, samples: Iterable[Sample], shard_samples: int | None, name: str, digests: dict[str, str] | None
) -> Iterator[NewShard]:
    """Open shards of `shard_samples` samples each (the last may be shorter), or of nearly equal sizes.

    Each must be filled before the next one is drawn.

    Args:
        folder: where.
        samples: what.
        shard_samples: how many; None: `shard_sizes` tells.
        name: of the shards, with a place for their number.
        digests: takes the shards' digests, by name.

    Raises:
        DatasetError: less than one sample a shard.
    """
    if shard_samples is not None and shard_samples < 1:
        raise DatasetError(f"shard_samples must be at least 1. Found: {shard_samples}")
    sizes, told = tee(shard_sizes(length_hint(samples), shard_samples))
    with WriteBehind() as behind:
        for number, (run, size) in enumerate(zip(batched(samples, sizes), told, strict=False)):
            path = folder / name.format(number)
            with path.open("wb") as file:
                shard = Shard(file, behind)
                yield NewShard(path.name, shard, run, size)
            if digests is not None:
                digests[path.name] = shard.digest


def write_shards(
    folder: Path,
    samples: Iterable[Sample],
    shard_samples: int | None,
    suffix: str,
    digests: dict[str, str] | None,
    store: Callable[[Shard, Sample], str],
    finish: Callable[[Shard, list[str]], str | None],
) -> Iterator[IndexRow]:
    """Write `new_shards`, a sample at a time, and an index beside each.

    Args:
        folder: where.
        samples: what.
        shard_samples: how many a shard; None: `shard_sizes` tells.
        suffix: of the shards' names.
        digests: takes the shards' digests, by name.
        store: appends a sample; what the index says of it.
        finish: ends a shard; its index, given what `store` said of each sample, or None where it has none.

    Raises:
        DatasetError: less than one sample a shard.
    """
    for name, shard, run, _ in new_shards(folder, samples, shard_samples, f"shard-{{:06d}}{suffix}", digests):
        places = []
        for sample in run:
            places.append(store(shard, sample))
            yield index_row(sample, name)
        index = finish(shard, places)
        if index is not None:
            (folder / f"{name}.idx").write_text(index)
