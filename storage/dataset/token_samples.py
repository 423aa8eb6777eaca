"""Token sequences: BERT's pre-training samples and windows of a stream, generated; what both share with given ones."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.fields import MLM_FIELDS
from benchsuite.storage.dataset.sample import Allocate, Sample
from benchsuite.storage.errors import DatasetError

PAD, CLS, SEP, MASK = 0, 101, 102, 103
"""Ids of BERT's special tokens."""
FIRST_ID = 256
"""Generated ids of BERT begin here."""
MASKED_SHARE = 0.15
SHORT_SHARE = 0.1
"""Share of generated BERT samples that do not fill seq_len."""
MEAN_DOCUMENT_TOKENS = 500
Ids = npt.NDArray[np.int64]


def kept_params(params: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters that sequences are made for, as the manifest keeps them."""
    return {name: params[name] for name in ("seq_len", "max_predictions", "vocab_size") if name in params}


def token_dtype(vocab_size: int) -> "np.dtype[np.uint16] | np.dtype[np.int32]":
    """What Megatron-LM stores ids as."""
    return np.dtype(np.uint16) if vocab_size < 65500 else np.dtype(np.int32)


def _zipf_ids(rng: np.random.Generator, count: int, first: int, end: int) -> Ids:
    """Ids in [first, end) whose frequency falls as 1 / rank (Zipf's law).

    Raises:
        DatasetError: there are none.
    """
    span = end - first
    if span < 1:
        raise DatasetError(f"vocab_size {end}: ids of generated words begin at {first}")
    return np.minimum((span + 1.0) ** rng.random(count), span).astype(np.int64) - 1 + first


def mlm_sample(index: int, allocate: Allocate, seed: int, params: Mapping[str, int]) -> Sample:
    """A generated pre-training sample of BERT (Devlin et al. 2018) that depends on seed and index alone.

    [CLS] first [SEP] second [SEP], padded to seq_len. 15 % of the tokens, at most max_predictions, are to be predicted:
    of these 80 % are masked, 10 % replaced by a random id and 10 % left. Positions and ids beyond the predictions made
    are 0.
    """
    rng = np.random.Generator(np.random.Philox([seed, index]))
    room = params["seq_len"] - 3
    length = int(rng.integers(min(8, room), room + 1)) if rng.random() < SHORT_SHARE else room
    split = int(rng.integers(1, length))
    words = _zipf_ids(rng, length, FIRST_ID, params["vocab_size"])
    second_is_random = rng.random() < 0.5
    tokens = np.concatenate([[CLS], words[:split], [SEP], words[split:], [SEP]])
    input_ids = np.zeros(params["seq_len"], np.int32)
    segment_ids = np.zeros(params["seq_len"], np.int8)
    positions = np.zeros(params["max_predictions"], np.int32)
    targets = np.zeros(params["max_predictions"], np.int32)
    segment_ids[split + 2 : len(tokens)] = 1
    candidates = np.flatnonzero((tokens != CLS) & (tokens != SEP))
    count = min(len(positions), max(1, round(len(tokens) * MASKED_SHARE)), len(candidates))
    chosen = np.sort(rng.permutation(candidates)[:count])
    positions[:count], targets[:count] = chosen, tokens[chosen]
    fate = rng.random(count)
    random_ids = rng.integers(FIRST_ID, params["vocab_size"], count)
    tokens[chosen] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, random_ids, tokens[chosen]))
    input_ids[: len(tokens)] = tokens
    fields = (input_ids, segment_ids, positions, targets, np.asarray(second_is_random, np.int8))
    return Sample(f"{index:08d}", dict(zip(MLM_FIELDS, fields, strict=True)))


def _stream_part(index: int, seed: int, params: Mapping[str, int]) -> Ids:
    """Tokens of the stream from index x seq_len on: documents of random length, each ended by END_OF_DOCUMENT."""
    rng = np.random.Generator(np.random.Philox([seed, index]))
    tokens = _zipf_ids(rng, params["seq_len"], END_OF_DOCUMENT + 1, params["vocab_size"])
    tokens[rng.random(len(tokens)) < 1 / MEAN_DOCUMENT_TOKENS] = END_OF_DOCUMENT
    return tokens


def token_sample(index: int, allocate: Allocate, seed: int, params: Mapping[str, int]) -> Sample:
    """A window of a generated stream; its last token is the first of the next window."""
    tokens = np.append(_stream_part(index, seed, params), _stream_part(index + 1, seed, params)[0])
    return Sample(f"{index:08d}", {"tokens": tokens.astype(token_dtype(params["vocab_size"]))})


def mlm_bytes(params: Mapping[str, int]) -> int:
    """Bytes of a BERT sample."""
    return 5 * params["seq_len"] + 8 * params["max_predictions"] + 1


def token_bytes(params: Mapping[str, int]) -> int:
    """Bytes of a window."""
    return (params["seq_len"] + 1) * token_dtype(params["vocab_size"]).itemsize


END_OF_DOCUMENT = 0
"""What ends a document where samples are generated or their source does not say how they are divided."""
