"""Plain text that users have, made into token ids: bytes, or what a tokenizer.json of HuggingFace says."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchsuite.storage.dataset.fields import outside
from benchsuite.storage.dataset.sample import Array
from benchsuite.storage.dataset.token_samples import END_OF_DOCUMENT, kept_params, token_dtype
from benchsuite.storage.errors import DatasetError, reason, told
from benchsuite.storage.formats.tokens import Documents
from benchsuite.storage.sources.sequences import Stream, windows
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
Encode = Callable[[bytes, str], Array]
"""Token ids of a piece of text; the second argument says where it stands."""


def find_texts(path: Path, inside: list[Path]) -> list[Path]:
    """The .txt files of a folder and those below, and compressed ones, which are refused when they are opened."""
    suffixes = (".txt", *packed(".txt"))
    return with_suffixes(files_below(path, suffixes) if path.is_dir() else inside, *suffixes)


def _encoder(request: Request, dtype: "np.dtype[Any]") -> Encode:
    """Bytes as ids of this type, or the tokenizer that was asked for.

    Ids that the vocabulary lacks are refused; where samples may be left out they pass, and `windows` finds theirs.
    """
    encode = _tokenizer(Path(request.options.tokenizer)) if request.options.tokenizer else None

    def checked(text: bytes, where: str) -> Array:
        ids = encode(text, where) if encode else np.frombuffer(text, np.uint8)
        if (trouble := outside("tokens", ids, request.params)) is None:
            return ids.astype(dtype)
        if request.skips is None:
            request.leave_out(DatasetError(f"{where}: {trouble}"))
        return ids.astype(np.int64)  # a narrower type would make others of them

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

    def encode(text: bytes, where: str) -> Array:
        with told(f"{where}: not UTF-8", UnicodeDecodeError):
            decoded = text.decode()
        return np.array(tokenizer.encode(decoded, add_special_tokens=False).ids, np.int64)

    return encode


def open_tokens(paths: list[Path], request: Request) -> Source:
    """Windows of all files' tokens in the order of their names, END_OF_DOCUMENT after each.

    Text is encoded in pieces of whole lines, so a tokenizer sees no token across the end of a piece's last line.
    """
    refuse_packed(paths, ".txt")
    length, is_bytes = request.params["seq_len"], request.options.tokenizer is None
    size = total_size(paths) + len(paths)
    notes: dict[str, str | int | float | None] = {"tokenizer": request.options.tokenizer or "bytes"}
    dtype = token_dtype(request.params["vocab_size"])
    lengths: list[int] = []
    documents = Documents(lengths)
    pieces = _token_pieces(paths, _encoder(request, dtype), dtype, lengths)

    def file_at(place: int) -> Path:
        return paths[int(np.searchsorted(np.cumsum(lengths), place, side="right"))]

    samples = windows(Stream(request.path, pieces, documents, file_at), request, notes)
    count = max(0, (size - 1) // length) if is_bytes else None
    size = size * dtype.itemsize * (length + 1) // length
    return Source(count, size, samples, kept_params(request.params), notes, documents)


def _token_pieces(paths: list[Path], encode: Encode, dtype: "np.dtype[Any]", lengths: list[int]) -> Iterator[Array]:
    """The stream of all files; the tokens of each are noted in `lengths`."""
    for path in paths:
        lengths.append(1)
        for line, piece in _pieces(path):
            tokens = encode(piece, f"{path}: from line {line}")
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
