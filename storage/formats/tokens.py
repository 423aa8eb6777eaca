"""Format `tokens`: the .bin/.idx pair of Megatron-LM and GPT-NeoX, memory-mapped.

The .bin holds token ids, document after document. The .idx: the magic `MMIDIDX`, version 1 (uint64), a code for the
ids' type (uint8), the numbers of sequences and of document bounds (uint64); then the sequences' lengths in tokens
(int32), their places in bytes (int64), and the documents' bounds as numbers of sequences, the first 0 (int64).
Little-endian.

Samples are what a training run cuts from that stream: sample i is tokens i S .. i S + S, S + 1 of them, so that
neighbours share one token, which is the last target of one and the first input of the other. Documents do not bound
them, but stand in the .idx for Megatron-LM and GPT-NeoX, which shuffle documents: as the source's own .idx or text
files have them, also where the id that ends a document is not 0; else cut after each END_OF_DOCUMENT.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.fields import array
from benchsuite.storage.dataset.manifest import (
    Dataset,
    Format,
    IndexRow,
    ReaderShare,
    StockReader,
    dealt,
    index_row,
    inside,
    text,
)
from benchsuite.storage.dataset.opened import DataFile, Numbers, open_data, open_file
from benchsuite.storage.dataset.sample import Array, Sample
from benchsuite.storage.dataset.token_samples import END_OF_DOCUMENT
from benchsuite.storage.errors import DatasetError

BIN, IDX = "tokens.bin", "tokens.idx"
MAGIC = b"MMIDIDX\0\0"
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Codes of integer types; 6 and 7 are floats, in an order on which the two projects disagree."""
MAX_SEQUENCE_TOKENS = (1 << 31) - 1
"""The longest sequence whose length fits into an .idx file."""
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


@dataclass(frozen=True)
class Documents:
    """How a stream of tokens is divided."""

    lengths: Sequence[int] | Array
    """Tokens of each sequence; whole once all samples are drawn."""
    bounds: npt.NDArray[np.int64] | None = None
    """Bounds of documents as numbers of sequences; None: each sequence is a document."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """First token and end of each part of the stream that is left out, in order; whole once all samples are drawn."""


def divided(index: TokenIndex, path: Path) -> Documents:
    """The documents that an .idx file at `path` names.

    Raises:
        DatasetError: its sequences leave gaps or overlap, or its documents are not made of them.
    """
    ends = np.cumsum(index.lengths, dtype=np.int64) * index.dtype.itemsize
    if (index.lengths < 0).any() or not np.array_equal(index.places, np.concatenate([[0], ends])[: len(ends)]):
        raise DatasetError(f"{path}: its sequences do not lie one after another")
    bounds = index.documents
    if not len(bounds) or bounds[0] != 0 or bounds[-1] > len(index.lengths) or (np.diff(bounds) < 0).any():
        raise DatasetError(f"{path}: its documents do not follow one another from sequence 0 to {len(index.lengths)}")
    return Documents(index.lengths, bounds)


def documents_of(dataset: Dataset) -> Documents | None:
    """The documents of a dataset of format tokens; None for other formats, which do not keep them."""
    if dataset.manifest.format != "tokens":
        return None
    with open_data(dataset, IDX) as file:
        return divided(index_in(file), file.path)


def write_index(
    path: Path, dtype: "np.dtype[Any]", lengths: Sequence[int] | Array, documents: Sequence[int] | Array
) -> None:
    """Write an .idx file for sequences that lie one after another.

    Raises:
        DatasetError: one is too long for such a file.
    """
    _refuse_long(int(np.max(lengths, initial=0)), path.name)
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
    with open_file(path) as file:
        return index_in(file)


def index_in(file: DataFile) -> TokenIndex:
    """Read an open .idx file.

    Raises:
        DatasetError: as `read_index`.
    """
    path, content = file.path, file.read_at(0, np.empty(file.size, np.uint8)).tobytes()
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


def open_stream(bin_path: Path, index: TokenIndex) -> Numbers:
    """A .bin file as one array of token ids: memory-mapped, or of an object, read by ranges.

    Raises:
        DatasetError: it is missing, or shorter than its index says.
    """
    needed = int(index.lengths.sum(dtype=np.int64)) * index.dtype.itemsize
    with open_file(bin_path) as file:  # a map outlives its descriptor, and objects have none
        if file.size % index.dtype.itemsize or file.size < needed:
            raise DatasetError(f"{bin_path}: {file.size} bytes, its .idx promises {needed}: truncated")
        return file.array(index.dtype)


class _Cut:
    """Cuts a stream into documents that end with END_OF_DOCUMENT."""

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._open_tokens = 0

    @property
    def lengths(self) -> list[int]:
        """Tokens of each document so far; the last one may not have ended."""
        return [*self._whole, self._open_tokens] if self._open_tokens else self._whole

    def add(self, tokens: Array) -> None:
        """Go on with the stream.

        Raises:
            DatasetError: a document is longer than an .idx file can say.
        """
        ends = np.flatnonzero(tokens == END_OF_DOCUMENT) + 1
        for start, end in zip([0, *ends[:-1]], ends, strict=False):
            self._whole.append(int(end - start) + self._open_tokens)
            self._open_tokens = 0
        self._open_tokens += len(tokens) - int(ends[-1] if len(ends) else 0)
        _refuse_long(self._open_tokens, BIN)


def _refuse_long(length: int, file: str) -> None:
    if length > MAX_SEQUENCE_TOKENS:
        raise DatasetError(
            f"{file}: a document of {length} tokens or more; an .idx file can say at most {MAX_SEQUENCE_TOKENS}"
        )


def _first_tokens(documents: Documents, count: int) -> tuple[Array, Array]:
    """Lengths of the sequences that the first `count` tokens are in, and bounds of their documents.

    Raises:
        DatasetError: the sequences hold fewer tokens.
    """
    ends = _without(documents.gaps, np.cumsum(np.asarray(documents.lengths, np.int64)))
    if count > (ends[-1] if len(ends) else 0):
        raise DatasetError(f"{IDX}: {count} tokens, its documents hold fewer: not those of this stream")
    lengths = np.diff(np.minimum(ends[: np.searchsorted(ends, count) + 1], count), prepend=0)
    if documents.bounds is None:
        return lengths, np.arange(len(lengths) + 1)
    return lengths, np.append(documents.bounds[documents.bounds < len(lengths)], len(lengths))


def _without(gaps: Sequence[tuple[int, int]], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where sequences end in a stream once its gaps are left out."""
    if not gaps:
        return ends
    starts, stops = np.array(gaps, np.int64).T
    begun = np.searchsorted(starts, ends)  # gaps that begin before each end
    lost = np.append(0, np.cumsum(stops - starts))[begun]
    beyond = np.maximum(np.append(0, stops)[begun] - ends, 0)  # of the last of these gaps
    return np.asarray(ends - lost + beyond)


def write(folder: Path, samples: Iterable[Sample], documents: Documents | None = None) -> Iterator[IndexRow]:
    """Write samples that chain (each begins with its forerunner's last token) as one stream of documents.

    Where `documents` does not say how it is divided, a document ends with the token END_OF_DOCUMENT.
    """
    cut, count = _Cut(), 0
    last, dtype = None, np.dtype(np.uint16)
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
            if documents is None:
                cut.add(added)
            last, count = values[-1], count + len(added)
            yield index_row(sample, BIN)
    write_index(folder / IDX, dtype, *_first_tokens(documents or Documents(cut.lengths), count))


def stream_of(dataset: Dataset) -> Numbers:
    """Open a dataset's stream of token ids.

    Raises:
        DatasetError: it is not the one that the manifest describes.
    """
    with open_data(dataset, IDX) as file:
        index, idx_path = index_in(file), file.path
    said = next((info.dtype for info in dataset.manifest.fields if info.name == "tokens"), index.dtype.name)
    if index.dtype.name != said:
        raise DatasetError(f"{idx_path}: token ids of type {index.dtype.name}, the manifest says {said}: changed")
    with open_data(dataset, BIN) as file:
        path = file.path
    stream = open_stream(path, index)
    window = dataset.manifest.params.get("seq_len", 0) + 1
    if window < 2 or len(stream) < (window - 1) * len(dataset.index) + 1:
        raise DatasetError(
            f"{path}: {len(stream)} tokens, the manifest's {len(dataset.index)} samples of {window} need more"
        )
    return stream


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples: windows of the stream, copied into the lane's memory."""
    stream, window = stream_of(dataset), dataset.manifest.params["seq_len"] + 1
    source = str(inside(dataset.folder, BIN))
    for row in map(int, dealt(len(dataset.index), lane)):
        start = row * (window - 1)
        size = window * stream.itemsize
        values = lane.allocate("tokens", size)[:size].view(stream.dtype)
        values[:] = stream[start : start + window]
        yield Sample(text(dataset.index["key"][row]), {"tokens": values}, row, source)


TOKENS = Format(
    "tokens",
    frozenset({"tokens"}),
    write,
    read,
    stores_documents=True,
    reads="mapped",
    from_buckets=True,
    stock=StockReader("benchsuite.storage.stock.tokens:STOCK", "pip install numpy"),
    advised_kinds=frozenset({"tokens"}),
)
