"""Loaders: who turns a format into batches.

A loader is built as `Loader(dataset, spec, kind, params, batch_size, rank, world_size, seed)` and has the attributes
and methods of `LoaderProtocol`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class LoaderStats:
    """What the readers of one rank have done since the loader was built."""

    samples: int
    """Samples decoded, delivered or still queued."""
    stored_bytes: int
    """Their bytes as stored."""
    read_s: float
    """Seconds in reading, summed over readers."""
    decode_s: float
    """Seconds in decoding and augmenting, summed over readers."""
    storage_bytes: int | None
    """Bytes that the kernel fetched from storage for the readers; None where it cannot be read."""
    cpu_s: float
    """CPU seconds of the reader processes; 0 where the training process itself reads."""


class LoaderProtocol(Protocol):
    """An endless stream of batches; sample indices and epochs come along as `index` and `epoch`."""

    queue_batches: int
    """Batches that the prefetch queue holds when full."""

    def __next__(self) -> Batch: ...

    def stats(self) -> LoaderStats: ...

    def close(self) -> None: ...
