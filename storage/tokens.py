"""Format `tokens`: the .bin/.idx pair of Megatron-LM and GPT-NeoX, memory-mapped.

The .bin holds token ids, document after document. The .idx: the magic `MMIDIDX`, version 1 (uint64), a code for the
ids' type (uint8), the numbers of sequences and of document bounds (uint64); then the sequences' lengths in tokens
(int32), their places in bytes (int64), and the documents' bounds as numbers of sequences, the first 0 (int64).
Little-endian.

Samples are what a training run cuts from that stream: sample i is tokens i S .. i S + S, S + 1 of them, so that
neighbours share one token, which is the last target of one and the first input of the other.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.fields import array
from storage.format import (
    Dataset,
    Format,
    IndexRow,
    Lane,
    by_sample_problem,
    by_sample_smallest_lane,
    data_file,
    dealt,
    index_row,
    text,
)
from storage.sample import Array, DatasetError, Sample

BIN, IDX = "tokens.bin", "tokens.idx"
MAGIC = b"MMIDIDX\0\0"
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Codes of integer types; 6 and 7 are floats, in an order on which the two projects disagree."""
END_OF_DOCUMENT = 0
_HEADER = struct.Struct("<9sQBQQ")


@dataclass(frozen=True)
class TokenIndex:
    """The content of an .idx file."""

    dtype: "np.dtype[Any]"
    lengths: npt.NDArray[np.int32]
    """Tokens of each sequence."""
    places: npt.NDArray[np.int64]
    """Byte offset of each sequence in the .bin."""
    documents: npt.NDArray[np.int64]
    """Bounds of documents as numbers of sequences: the first is 0, the last the number of sequences."""


def write_index(path: Path, dtype: "np.dtype[Any]", lengths: list[int], documents: list[int]) -> None:
    """Write an .idx file for sequences that lie one after another."""
    code = next(code for code, kind in DTYPES.items() if np.dtype(kind) == dtype)
    sizes = np.asarray(lengths, dtype="<i4")
    places = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1], out=places[1:], dtype=np.int64)
    with path.open("wb") as file:
        file.write(_HEADER.pack(MAGIC, 1, code, len(sizes), len(documents)))
        file.write(sizes.tobytes() + (places * dtype.itemsize).tobytes() + np.asarray(documents, dtype="<i8").tobytes())


def read_index(path: Path) -> TokenIndex:
    """Read an .idx file.

    Raises:
        DatasetError: it is not one, is cut short, or holds ids that are no integers.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    if len(content) < _HEADER.size or content[: len(MAGIC)] != MAGIC:
        raise DatasetError(f"{path}: not an .idx file of Megatron-LM: it does not begin with MMIDIDX")
    _, version, code, sequences, documents = _HEADER.unpack_from(content)
    if version != 1 or code not in DTYPES:
        raise DatasetError(f"{path}: version {version}, type code {code}; readable: version 1, types {list(DTYPES)}")
    needed = _HEADER.size + sequences * 12 + documents * 8
    if len(content) < needed:
        raise DatasetError(f"{path}: {len(content)} bytes, its header promises {needed}: truncated")
    lengths = np.frombuffer(content, "<i4", sequences, _HEADER.size)
    places = np.frombuffer(content, "<i8", sequences, _HEADER.size + 4 * sequences)
    bounds = np.frombuffer(content, "<i8", documents, _HEADER.size + 12 * sequences)
    return TokenIndex(np.dtype(DTYPES[code]), lengths, places, bounds)


def open_stream(bin_path: Path, index: TokenIndex) -> Array:
    """The .bin file as one memory-mapped array of token ids.

    Raises:
        DatasetError: it is missing, or shorter than its index says.
    """
    needed = int(index.lengths.sum(dtype=np.int64))
    try:
        size = bin_path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{bin_path}: {error.strerror}") from error
    if size % index.dtype.itemsize or size < needed * index.dtype.itemsize:
        raise DatasetError(f"{bin_path}: {size} bytes, its .idx promises {needed * index.dtype.itemsize}: truncated")
    return np.memmap(bin_path, index.dtype, "r") if size else np.empty(0, index.dtype)


def write(folder: Path, samples: Iterable[Sample]) -> Iterator[IndexRow]:
    """Write samples that chain (each begins with its forerunner's last token) as one stream of documents.

    A document ends with the token END_OF_DOCUMENT.
    """
    lengths: list[int] = []
    open_tokens, last, dtype = 0, None, np.dtype(np.uint16)
    with (folder / BIN).open("wb") as file:
        for sample in samples:
            values = array(sample, "tokens")
            dtype = values.dtype
            if last is not None and (values[0] != last or values.dtype != last.dtype):
                raise DatasetError(
                    f"sample {sample.key!r} does not go on where the one before it ends: not windows of one stream, "
                    f"which is what format tokens stores"
                )
            added = values if last is None else values[1:]
            file.write(np.ascontiguousarray(added).tobytes())
            ends = np.flatnonzero(added == END_OF_DOCUMENT) + 1
            for start, end in zip([0, *ends[:-1]], ends, strict=False):
                lengths.append(int(end - start) + open_tokens)
                open_tokens = 0
            open_tokens += len(added) - int(ends[-1] if len(ends) else 0)
            last = values[-1]
            yield index_row(sample, BIN)
    if open_tokens:
        lengths.append(open_tokens)
    write_index(folder / IDX, dtype, lengths, list(range(len(lengths) + 1)))


def read(dataset: Dataset, lane: Lane) -> Iterator[Sample]:
    """The lane's samples: windows of the stream, copied into the lane's memory."""
    path = data_file(dataset, BIN)
    index = read_index(data_file(dataset, IDX))
    stream = open_stream(path, index)
    window = dataset.manifest.params.get("seq_len", 0) + 1
    if window < 2 or len(stream) < (window - 1) * len(dataset.index) + 1:
        raise DatasetError(
            f"{path}: {len(stream)} tokens, the manifest's {len(dataset.index)} samples of {window} need more"
        )
    for row in map(int, dealt(len(dataset.index), lane)):
        start = row * (window - 1)
        size = window * stream.itemsize
        values = lane.allocate("tokens", size)[:size].view(stream.dtype)
        values[:] = stream[start : start + window]
        yield Sample(text(dataset.index["key"][row]), {"tokens": values}, row, str(path))


TOKENS = Format(
    "tokens",
    frozenset({"tokens"}),
    write,
    read,
    by_sample_problem,
    by_sample_smallest_lane,
    file_per_sample=False,
    sequential=False,
)
