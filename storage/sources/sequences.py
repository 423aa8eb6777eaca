"""Token sequences that users have: streams (.bin/.idx) cut into windows, and checks of BERT's samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchsuite.storage.dataset.fields import MLM_DTYPES, MLM_SHAPES, outside
from benchsuite.storage.dataset.sample import Array, Sample
from benchsuite.storage.dataset.token_samples import kept_params, token_dtype
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tokens import Documents, divided, open_stream, read_index
from benchsuite.storage.sources.source import Request, Source, file_size, whole, with_suffixes

STORED_DTYPES = (np.dtype(np.uint16), np.dtype(np.int32))
"""What Megatron-LM stores ids as; others are changed to one of these."""
PIECE_TOKENS = 1 << 20


def mlm_sample(key: str, raw: Mapping[str, Array], params: Mapping[str, int], where: str, source: Path) -> Sample:
    """A pre-training sample of BERT from integers of any width.

    Raises:
        DatasetError: a field has another length than asked for, or a number that it cannot have.
    """
    fields: dict[str, Array] = {}
    for name, length in MLM_SHAPES.items():
        values = np.asarray(raw[name])
        needed = params[length] if length else 1
        if values.size != needed:
            raise DatasetError(f"{where}: {name} has {values.size} values, {length or 'needed'}: {needed}")
        if values.dtype.kind not in "iu":
            raise DatasetError(f"{where}: {name} holds {values.dtype}; needed: integers")
        if (trouble := outside(name, values, params)) is not None:
            raise DatasetError(f"{where}: {trouble}")
        shape = (needed,) if length else ()
        fields[name] = values.reshape(shape).astype(MLM_DTYPES.get(name, "int32"))
    return Sample(key, fields, source=str(source))


@dataclass(frozen=True)
class Stream:
    """Token ids of one file, or of several as one."""

    path: Path
    """The file, or what holds them all."""
    pieces: Iterable[Array]
    documents: Documents
    """How it is divided; what is left out of it is noted there."""
    file_at: Callable[[int], Path]
    """The file of a token, by its place in what was drawn so far."""


def windows(stream: Stream, request: Request, notes: dict[str, str | int | float | None]) -> Iterator[Sample]:
    """Windows of a stream of token ids: window i is tokens i S .. i S + S, so that neighbours share one.

    Ids keep their type where Megatron-LM stores that. What fills no window at the end is counted in
    `notes["dropped_tokens"]`. A window that is left out takes S tokens out of the stream: the next one that is stored
    begins with the last token before them.

    Raises:
        DatasetError: ids that the vocabulary does not have, or a stream too short for one window.
    """
    return whole(_window_makers(stream, request.params, notes), request.skips)


def _window_makers(
    stream: Stream, params: Mapping[str, int], notes: dict[str, str | int | float | None]
) -> Iterator[Callable[[], Sample]]:
    """What makes each window, to be called before the next one is drawn."""
    length, number, chain = params["seq_len"], 0, _Chain(stream, params)
    rest: Array = np.empty(0, token_dtype(params["vocab_size"]))
    for piece in stream.pieces:
        tokens = np.concatenate([rest, piece]) if len(rest) else piece
        count = max(0, (len(tokens) - 1) // length)
        for start in range(0, count * length, length):
            yield partial(chain.window, tokens[start : start + length + 1], number)
            number += 1
        rest = np.array(tokens[count * length :])
    if not number:
        raise DatasetError(
            f"{stream.path}: too little data: {len(rest)} tokens, a window needs {length + 1} (seq_len {length} + 1): "
            "give more text, or another folder"
        )
    notes["dropped_tokens"] = len(rest) - 1


class _Chain:
    """Makes windows of which each begins with the last token of the one before, also where some are left out."""

    def __init__(self, stream: Stream, params: Mapping[str, int]) -> None:
        self._stream, self._length, self._params = stream, params["seq_len"], params
        self._vocabulary = params["vocab_size"]
        self._last: Array | None = None

    def window(self, tokens: Array, number: int) -> Sample:
        """The window with this number, of a stream's tokens from there on.

        Raises:
            DatasetError: the vocabulary lacks one of them. They are then noted as left out.
        """
        place, shared = number * self._length, int(self._last is not None)
        own = tokens[shared:]
        if (trouble := outside("tokens", own, self._params)) is not None:
            self._stream.documents.gaps.append((place + shared, place + shared + self._length))
            first = int(np.argmax((own < 0) | (own >= self._vocabulary)))
            file = self._stream.file_at(place + shared + first)
            raise DatasetError(f"{file}: window {number} (from token {place}): {trouble}")
        dtype = tokens.dtype if tokens.dtype in STORED_DTYPES else token_dtype(self._vocabulary)
        values = np.array(tokens, dtype)
        if self._last is not None:
            values[0] = self._last  # another token only behind a window that is left out
        self._last = values[-1]
        return Sample(f"{number:08d}", {"tokens": values}, source=str(self._stream.path))


def pair_path(path: Path) -> Path:
    """The .bin file where a prefix or an .idx file is given; other paths as they are."""
    if path.suffix == ".idx":
        return path.with_suffix(".bin")
    prefixed = path.with_name(f"{path.name}.bin")
    return prefixed if not path.exists() and prefixed.exists() else path


def find_bin(path: Path, inside: list[Path]) -> list[Path]:
    """The .bin files.

    Raises:
        DatasetError: there are several, or the .idx of one is missing.
    """
    found = with_suffixes(inside, ".bin")
    for bin_path in found:
        if not bin_path.with_suffix(".idx").is_file():
            raise DatasetError(f"{bin_path}: its index {bin_path.with_suffix('.idx').name} is missing")
    if len(found) > 1:
        raise DatasetError(f"{path}: {len(found)} files {found[0].name}, {found[1].name} and so on; give one of them")
    return found


def open_bin(paths: list[Path], request: Request) -> Source:
    """Windows of Megatron-LM's .bin/.idx pair, memory-mapped; format tokens keeps its documents.

    Raises:
        DatasetError: the pair is damaged, or its files do not belong together.
    """
    (path,) = paths
    index_path = path.with_suffix(".idx")
    index = read_index(index_path)
    documents = divided(index, index_path)
    count = int(index.lengths.sum(dtype=np.int64))
    if file_size(path) > count * index.dtype.itemsize:
        raise DatasetError(
            f"{path}: {file_size(path)} bytes, its .idx names only {count * index.dtype.itemsize}: not a pair"
        )
    tokens, length = open_stream(path, index), request.params["seq_len"]
    pieces = (tokens[start : start + PIECE_TOKENS] for start in range(0, len(tokens), PIECE_TOKENS))
    notes: dict[str, str | int | float | None] = {}
    count = max(0, (len(tokens) - 1) // length)
    size = count * (length + 1) * tokens.dtype.itemsize
    samples = windows(Stream(path, pieces, documents, lambda place: path), request, notes)
    return Source(count, size, samples, kept_params(request.params), notes, documents)
