"""NumPy's .npy files as bytes: a header to write before an array, and a view of an array that was read (no pickle)."""

import io
import math
import threading
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from benchsuite.storage.dataset.sample import Array
from benchsuite.storage.errors import DatasetError

MAX_HEADER_BYTES = 4096
_parsing = threading.Lock()
"""numpy reads headers as Python literals, and Python 3.11's parser fails at times where threads do so at once."""


def header(array: Array) -> bytes:
    """What stands before an array's bytes in a .npy file; its length is a multiple of 64."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(np.ascontiguousarray(array).reshape(array.shape)))
    return stream.getvalue()


def parts(array: Array) -> tuple[bytes, memoryview]:
    """A .npy file's content: its header, and the array's own memory."""
    values = np.ascontiguousarray(array)
    return header(array), (values.reshape(-1).view(np.uint8) if values.size else values.astype(np.uint8)).data


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Shape, whether in Fortran's order, and dtype of a .npy file; a damaged one makes numpy raise nearly anything."""
    read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    with _parsing:
        shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def view(content: bytes | memoryview | npt.NDArray[np.uint8], where: str) -> Array:
    """The array of a .npy file's content, sharing its memory.

    Raises:
        DatasetError: not a .npy file, one that holds pickled objects, or one that is cut short.
    """
    stream = io.BytesIO(bytes(content[:MAX_HEADER_BYTES]))
    try:
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # a damaged header makes numpy raise nearly anything
        raise DatasetError(f"{where}: not a .npy array: {str(error).partition(chr(10))[0]}") from error
    if dtype.hasobject:
        raise DatasetError(f"{where}: holds pickled objects, which are never loaded; save plain arrays")
    count, start = math.prod(shape), stream.tell()
    if min(shape, default=0) < 0 or not dtype.itemsize:
        raise DatasetError(f"{where}: its header says shape {shape} of {dtype}: damaged")
    if start + count * dtype.itemsize > len(content):
        raise DatasetError(
            f"{where}: {len(content)} bytes, its array needs {start + count * dtype.itemsize}: truncated"
        )
    flat = np.frombuffer(content, dtype, count, start)
    return flat.reshape(shape, order="F" if fortran else "C")
