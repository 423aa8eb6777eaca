"""Loaders: who turns a format into batches.

A loader is built as `Loader(reading)`, see `storage.loaders.reader.LoaderInput`, and has the attributes and methods of
`LoaderProtocol`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from benchsuite.inside.processes import ProcessIO

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class ReaderCounts:
    """What the readers of one rank have done since the loader was built, batches still queued included."""

    samples: int
    stored_bytes: int
    read_s: float
    """Seconds in reading, summed over readers; waiting for a core left out."""
    decode_s: float
    """Seconds in decoding and augmenting, summed over readers; waiting for a core left out."""
    failed: bool = False
    """Whether a reader has stumbled: asking for its batch raises why."""
    needed_s: float | None = None
    """Seconds the readers needed for these samples, handing them on included, waiting for room in the queue not; summed
    over readers. None where a loader cannot tell."""
    readers: int = 1
    """Readers that fill batches in turn."""
    read_cpu_s: float | None = None
    """Seconds of reading in which a core computed: copying, decompressing, parsing."""
    collate_s: float | None = None
    """Seconds of decoding in which samples were put together to batches; None where they are decoded into one."""
    unpack_s: float | None = None
    """Seconds of decoding in which a format's library decompressed and decoded what holds many samples, such as row
    groups; None where a format has no such thing, or its library does not tell."""


class Delivered(NamedTuple):
    """A batch, and which samples it holds: their rows in the dataset's index and the epochs they belong to."""

    batch: Batch
    rows: list[int]
    epochs: list[int]


class LoaderProtocol(Protocol):
    """An endless stream of batches.

    A batch's memory is used again: it holds until the next batch is asked for, and who needs it longer
    takes a copy. Copies to a CUDA device that are queued
    by then on the current stream are waited for; a loader whose batches wait for that has `copies`, and who tells it
    that all are queued (`copies.queued()`) frees the memory as soon as these are done.
    """

    queue_batches: int
    """Batches that the prefetch queue holds when full."""

    def __next__(self) -> Delivered: ...

    def counts(self) -> ReaderCounts:
        """What the readers have done; cheap enough to call between two steps."""

    def io(self) -> ProcessIO | None:
        """What the readers' processes have asked for and been fetched; None where that cannot be read."""

    def reading(self) -> tuple[Collection[int], Collection[int]]:
        """The processes that read, and the threads of this process that do."""

    def close(self) -> None:
        """Stop the readers."""
