"""The page cache: evict files, read them in, and measure how much of them is resident. Linux; no root needed."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_MEASURED_FILES = 10_000
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value
CLIENT_CACHE_VISIBLE = frozenset({"ext4", "xfs", "btrfs", "tmpfs", "overlay", "f2fs", "nfs", "nfs4", "lustre"})
"""File systems whose client cache is the kernel's page cache, so that mincore tells the truth about the client.

ZFS keeps a cache of its own; GPFS, DAOS and FUSE may.
"""


@dataclass(frozen=True)
class Residency:
    """Share of files' bytes in the page cache; None where the kernel does not tell this user."""

    fraction: float | None
    num_files: int
    num_measured: int


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


def _resident_pages(descriptor: int, size: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer((size + _PAGE - 1) // _PAGE)
        if _libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(byte & 1 for byte in pages.raw)
    finally:
        _libc.munmap(address, size)


def residency(paths: Sequence[Path], max_files: int = MAX_MEASURED_FILES) -> Residency:
    """How much of the files is in the page cache, by mincore.

    Of more than `max_files` files an evenly spaced sample is measured. The fraction is None as soon as one measured
    file hides its residency from this user, or where mincore does not answer.
    """
    step = max(1, -(-len(paths) // max_files))
    measured = paths[::step]
    resident = total = 0
    for path in measured:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if not _may_see(descriptor, path):
                return Residency(None, len(paths), 0)
            if size:
                resident += _resident_pages(descriptor, size)
                total += (size + _PAGE - 1) // _PAGE
        except OSError:
            return Residency(None, len(paths), 0)
        finally:
            os.close(descriptor)
    return Residency(resident / total if total else None, len(paths), len(measured))
