"""Reads past the page cache (O_DIRECT): whole blocks, into memory that begins at a block."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.sample import Allocate
from benchsuite.storage.errors import DatasetError, told

BLOCK_BYTES = 4096
"""Offsets, lengths and addresses are multiples of it; devices with larger blocks are rare."""


def open_direct(path: Path) -> int:
    """A descriptor whose reads go past the page cache.

    Raises:
        DatasetError: the file is missing, or its file system has no such reads.
    """
    with told(f"{path}: cannot be read directly (O_DIRECT)"):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)


def read_direct(
    descriptor: int, offset: int, num_bytes: int, name: str, allocate: Allocate, path: Path
) -> npt.NDArray[np.uint8]:
    """Bytes of a file, read in whole blocks around them; the view begins where they do.

    Raises:
        DatasetError: the file ends before, or cannot be read.
    """
    start = offset // BLOCK_BYTES * BLOCK_BYTES
    wanted = -(-(offset + num_bytes - start) // BLOCK_BYTES) * BLOCK_BYTES
    memory = allocate(name, wanted + BLOCK_BYTES)
    shift = -memory.ctypes.data % BLOCK_BYTES
    blocks = memory[shift : shift + wanted]
    view, done = blocks.data, 0
    try:
        while done < offset - start + num_bytes:
            count = os.preadv(descriptor, [view[done:]], start + done)
            done += count
            if not count or done % BLOCK_BYTES:  # only the file's end is read in part
                break
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    short = offset + num_bytes - start - done
    if short > 0:
        raise DatasetError(f"{path}: ends at byte {start + done}, {short} bytes short: truncated")
    return blocks[offset - start : offset - start + num_bytes]


def read_whole_direct(path: Path, name: str, allocate: Allocate) -> npt.NDArray[np.uint8]:
    """A file's content, past the page cache.

    Raises:
        DatasetError: as `open_direct` and `read_direct` do.
    """
    descriptor = open_direct(path)
    try:
        return read_direct(descriptor, 0, os.fstat(descriptor).st_size, name, allocate, path)
    finally:
        os.close(descriptor)
