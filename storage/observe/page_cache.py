"""The page cache: evict files, read them in, and measure how much of them is resident. Linux; no root needed."""

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_MEASURED_FILES = 10_000
MAX_MEASURED_BYTES = 64 << 30
"""The most bytes that are measured whole: of more, evenly spaced files and evenly spaced windows of each are."""
WINDOW_BYTES = 64 << 20
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class Residency:
    """Share of files' bytes in the page cache; None where the kernel does not tell this user."""

    fraction: float | None
    measured_fraction: float = 1.0
    """Share of the bytes of all files that was looked at."""


def evict(paths: Sequence[Path]) -> None:
    """Drop the files' clean pages; dirty ones are written out first. Works for any file that may be read."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(paths: Sequence[Path]) -> None:
    """Read the files once, whole."""
    buffer = memoryview(bytearray(1 << 20))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _may_see(descriptor: int, path: Path) -> bool:
    """Whether mincore tells this user the truth: owner, or may write (the kernel hides residency from others)."""
    return os.geteuid() == 0 or os.fstat(descriptor).st_uid == os.geteuid() or os.access(path, os.W_OK)


def _pages(descriptor: int, start: int, size: int) -> npt.NDArray[np.uint8]:
    """1 for each resident page of a part of a file, 0 for the others."""
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer((size + _PAGE - 1) // _PAGE)
        if _libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "mincore")
        return np.frombuffer(pages.raw, np.uint8) & np.uint8(1)
    finally:
        _libc.munmap(address, size)


def absent(descriptor: int, path: Path, size: int) -> list[tuple[int, int]] | None:
    """Bounds of the parts of an open file that are not in the page cache; None where the kernel hides that."""
    if not size:
        return []
    try:
        if not _may_see(descriptor, path):
            return None
        missing = np.concatenate([[0], 1 - _pages(descriptor, 0, size), [0]]).astype(np.int8)
    except OSError:
        return None
    bounds = np.flatnonzero(np.diff(missing)).reshape(-1, 2) * _PAGE
    return [(int(start), int(end)) for start, end in bounds]


def _windows(size: int, share: float) -> Iterator[tuple[int, int]]:
    """Starts and sizes of evenly spaced windows that cover this share of a file; all of it where the share is 1."""
    step = max(1, round(1 / share))
    for start in range(0, size, step * WINDOW_BYTES):
        yield start, min(WINDOW_BYTES, size - start)


def residency(
    paths: Sequence[Path], max_files: int = MAX_MEASURED_FILES, max_bytes: int = MAX_MEASURED_BYTES
) -> Residency:
    """How much of the files is in the page cache, by mincore.

    Of very many files, or very large ones, an evenly spaced sample is measured, and its share of all bytes told. The
    fraction is None as soon as one measured file hides its residency from this user, or where mincore does not answer.
    """
    step = max(1, -(-len(paths) // max_files))
    measured = paths[::step]
    try:
        sizes = [path.stat().st_size for path in measured]
        share = min(1.0, max_bytes / sum(sizes)) if sum(sizes) else 1.0
        counts = [_resident(path, size, share) for path, size in zip(measured, sizes, strict=True)]
    except OSError:
        return Residency(None, 0.0)
    if None in counts:
        return Residency(None, 0.0)
    resident = sum(count[0] for count in counts if count)
    looked_at = sum(count[1] for count in counts if count)
    everything = sum(sizes) * len(paths) / len(measured) if measured else 0
    return Residency(
        resident / looked_at if looked_at else None,
        min(1.0, looked_at * _PAGE / everything) if everything else 1.0,
    )


def _resident(path: Path, size: int, share: float) -> tuple[int, int] | None:
    """Resident and measured pages of a file; None where the kernel hides them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not _may_see(descriptor, path):
            return None
        parts = [(int(_pages(descriptor, *part).sum()), -(-part[1] // _PAGE)) for part in _windows(size, share)]
        return sum(resident for resident, _ in parts), sum(pages for _, pages in parts)
    finally:
        os.close(descriptor)
