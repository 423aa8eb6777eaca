"""Plain text that users have, made into token ids: bytes, or what a tokenizer.json of HuggingFace says."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.fields import outside
from benchsuite.storage.dataset.sample import Array, Sample
from benchsuite.storage.dataset.token_samples import (
    END_OF_DOCUMENT,
    FIRST_ID,
    Ids,
    kept_params,
    masked_sequence,
    mlm_bytes,
    token_dtype,
)
from benchsuite.storage.errors import DatasetError, reason, told
from benchsuite.storage.formats.tokens import Documents
from benchsuite.storage.sources.sequences import windows
from benchsuite.storage.sources.source import (
    Request,
    Source,
    files_below,
    packed,
    refuse_packed,
    total_size,
    with_suffixes,
)

PIECE_BYTES = 1 << 20
RANDOM_CHOICES = 64
"""How many earlier second parts are kept to draw a random one from."""
UNFILLED = 1.75
"""Packed samples are at most about so many times as many as full ones: segments do not fit, and half of the samples
begin with a part of what they drew, the rest of which comes again. A document begins a sample."""
Encode = Callable[[bytes, str], Ids]
"""Token ids of a piece of text; the second argument says where it stands."""


def find_texts(path: Path, inside: list[Path]) -> list[Path]:
    """The .txt files of a folder and those below, and compressed ones, which are refused when they are opened."""
    suffixes = (".txt", *packed(".txt"))
    return with_suffixes(files_below(path, suffixes) if path.is_dir() else inside, *suffixes)


def _encoder(request: Request, first_id: int) -> Encode:
    """Bytes as ids from `first_id` on, or the tokenizer that was asked for."""
    encode = _tokenizer(Path(request.tokenizer)) if request.tokenizer else None

    def checked(text: bytes, where: str) -> Ids:
        ids = encode(text, where) if encode else np.frombuffer(text, np.uint8).astype(np.int64) + first_id
        if (trouble := outside("tokens", ids, request.params)) is not None:
            raise DatasetError(f"{where}: {trouble}")
        return ids

    return checked


def _tokenizer(path: Path) -> Encode:
    """A tokenizer's encoding, without the special tokens that it would add.

    Raises:
        DatasetError: the library is not installed, or the file is not a tokenizer.json.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DatasetError("tokenizers is not installed: pip install 'benchsuite[text]'") from error
    with told(path):
        path.stat()
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DatasetError(f"{path}: not a tokenizer.json: {reason(error)}") from error

    def encode(text: bytes, where: str) -> Ids:
        with told(f"{where}: not UTF-8", UnicodeDecodeError):
            decoded = text.decode()
        return np.array(tokenizer.encode(decoded, add_special_tokens=False).ids, np.int64)

    return encode


def open_tokens(paths: list[Path], request: Request) -> Source:
    """Windows of all files' tokens in the order of their names, END_OF_DOCUMENT after each.

    Text is encoded in pieces of whole lines, so a tokenizer sees no token across the end of a piece's last line.
    """
    refuse_packed(paths, ".txt")
    length, is_bytes = request.params["seq_len"], request.tokenizer is None
    size = total_size(paths) + len(paths)
    notes: dict[str, str | int | float | None] = {"tokenizer": request.tokenizer or "bytes"}
    dtype = token_dtype(request.params["vocab_size"])
    lengths: list[int] = []
    pieces = _token_pieces(paths, _encoder(request, 0), dtype, lengths)
    samples = windows(pieces, request.params, request.path, notes)
    count = max(0, (size - 1) // length) if is_bytes else None
    size = size * dtype.itemsize * (length + 1) // length
    return Source(count, size, samples, kept_params(request.params), notes, Documents(lengths))


def _token_pieces(paths: list[Path], encode: Encode, dtype: "np.dtype[Any]", lengths: list[int]) -> Iterator[Array]:
    """The stream of all files; the tokens of each are noted in `lengths`."""
    for path in paths:
        lengths.append(1)
        for line, piece in _pieces(path):
            tokens = encode(piece, f"{path}: from line {line}").astype(dtype)
            lengths[-1] += len(tokens)
            yield tokens
        yield np.array([END_OF_DOCUMENT], dtype)


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's text in pieces of whole lines, with the number of the first."""
    first = 1
    with told(path):
        file = path.open("rb")
    with file:
        while True:
            with told(path):
                lines = file.readlines(PIECE_BYTES)
            if not lines:
                return
            yield first, b"".join(lines)
            first += len(lines)


def open_mlm(paths: list[Path], request: Request) -> Source:
    """BERT's samples packed from text: a segment per line, documents are files; the same for the same text.

    Special tokens have the ids of BERT's own vocabulary ([CLS] 101, [SEP] 102, [MASK] 103), whatever the tokenizer.
    """
    refuse_packed(paths, ".txt")
    room = request.params["seq_len"] - 3
    encode = _encoder(request, FIRST_ID)
    size = int((total_size(paths) * UNFILLED / room + len(paths)) * mlm_bytes(request.params))
    notes: dict[str, str | int | float | None] = {"tokenizer": request.tokenizer or "bytes"}
    return Source(None, size, _mlm_samples(paths, encode, request), kept_params(request.params), notes)


@dataclass(frozen=True)
class _Packer:
    """Packs a document's segments into pairs of at most `room` tokens."""

    room: int
    earlier: deque[Ids]
    """Second parts of earlier samples, for pairs whose second part is a random one."""

    def take(self, pending: deque[Ids], rng: np.random.Generator) -> tuple[Ids, Ids, bool]:
        """First and second part of the next sample, and whether the second is random; what was not used stays."""
        taken = [pending.popleft()]
        while pending and sum(map(len, taken)) + len(pending[0]) <= self.room:
            taken.append(pending.popleft())
        if len(taken) == 1:
            half = (len(taken[0]) + 1) // 2
            return taken[0][:half], taken[0][half:], False
        split = int(rng.integers(1, len(taken)))
        first, second = np.concatenate(taken[:split]), np.concatenate(taken[split:])
        is_random = len(self.earlier) > 0 and rng.random() < 0.5
        if is_random:
            pending.extendleft(reversed(taken[split:]))
            other = self.earlier[int(rng.integers(len(self.earlier)))]
            return first, other[: self.room - len(first)], True
        self.earlier.append(second)
        return first, second, False


def _mlm_samples(paths: list[Path], encode: Encode, request: Request) -> Iterator[Sample]:
    packer = _Packer(request.params["seq_len"] - 3, deque(maxlen=RANDOM_CHOICES))
    number = 0
    for path in paths:
        segments = _segments(path, encode, packer.room // 2)
        pending: deque[Ids] = deque()
        while True:
            while sum(map(len, pending)) <= packer.room and (segment := next(segments, None)) is not None:
                pending.append(segment)
            if not pending:
                break
            rng = np.random.Generator(np.random.Philox([0, number]))
            first, second, is_random = packer.take(pending, rng)
            made = masked_sequence(f"{number:08d}", first, second, is_random, rng, request.params)
            yield Sample(made.key, made.fields, source=str(path))
            number += 1
    if not number:
        raise DatasetError(f"{request.path}: no text in it: every line is empty")


def _segments(path: Path, encode: Encode, longest: int) -> Iterator[Ids]:
    """The tokens of each line that has any; long lines in several segments."""
    for start, piece in _pieces(path):
        for line, text in enumerate(piece.splitlines(), start):
            if text.strip():
                ids = encode(text.strip(), f"{path}: line {line}")
                yield from (ids[at : at + longest] for at in range(0, len(ids), longest))
