"""Measured points of a scaling series, the model fitted to them, and what it says of more ranks: plain data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from benchsuite.predict.scaling.exposed_communication import Overlap
from benchsuite.predict.scaling.nodes import UNTOLD, Placement
from benchsuite.predict.theory.arrays import Floats


@dataclass(frozen=True)
class Point:
    """What was measured at a number of ranks."""

    ranks: int
    step_s: tuple[float, ...]
    """Seconds of a step, of each repeat."""
    load_s: float = 0.0
    """The part of a step that waits for input, its own or that of ranks which it meets in the exchange."""
    parts: Mapping[str, float] | None = None
    """Computation, exchange without stragglers, and waiting for them; None where they were not told apart."""
    io_bytes_per_s: float | None = None
    backward_s: float | None = None
    au: float | None = None
    """Accelerator utilization as measured, against the rate without input."""

    @cached_property
    def middle_s(self) -> float:
        """Seconds at the median rate, which `scaling` prints too; of an even number of repeats, not the median step."""
        return float(1 / np.median(1 / np.array(self.step_s)))

    @property
    def base_s(self) -> float:
        """The part of the step that does not wait for input."""
        return max(self.middle_s - self.load_s, LEAST_BASE * self.middle_s)

    @property
    def read_bytes(self) -> float | None:
        """Bytes that all ranks read in a step."""
        return None if self.io_bytes_per_s is None else self.io_bytes_per_s * self.middle_s

    @property
    def au_scale(self) -> float | None:
        """Utilization over the share of the step that does not wait for input."""
        return None if self.au is None else self.au * self.middle_s / self.base_s


@dataclass(frozen=True)
class Curve:
    """A series of points that differ in their ranks alone."""

    title: str
    kind: str
    """weak: the batch of a rank is fixed; strong: that of all ranks."""
    batch: float
    """Samples per step: of a rank that has samples of its own (weak), of all (strong)."""
    points: tuple[Point, ...]
    data_share: float = 1.0
    """Ranks with samples of their own over ranks."""
    pipeline: bool = False
    """The ranks are stages of a pipeline, which wait for one another, by the bubble."""
    microbatches: int | None = None
    """Microbatches of a pipeline; None: as many as stages."""
    flushes: bool = False
    """The pipeline's forward passes all come first (GPipe), so that transfers delay nothing between."""
    exchange: Callable[[Floats], Floats] | None = None
    """Seconds of the series' collectives by ranks, as probed; None where they were not."""
    placement: Placement = UNTOLD
    """Nodes of its ranks."""
    buckets: tuple[float, ...] = ()
    """Bytes of what DDP exchanges at a time, beside the backward pass."""
    sent_share: float = 1.0
    """What is sent of each byte of gradients that a bucket holds: half where a hook compresses them."""
    bucket_s: Callable[[Floats], Callable[[Floats], Floats]] | None = None
    """What each bucket of such sizes takes by ranks, as probed, (n, buckets); None: as a ring that the trials'
    exchange tells."""
    overlap: Overlap | None = None
    """What DDP's buckets leave exposed, where that was fitted or probed (`series.fit`)."""
    has_input: bool = False
    """Waiting for input was measured, so that there is a utilization."""
    caveats: tuple[str, ...] = ()
    """Caveats of its trials, in words; and what was left out."""
    shared_bytes_per_s: float | None = None
    """Limit of a file system that all ranks read from; None where it was not seen or staging lifts it."""
    seen_bytes_per_s: float | None = None
    """The limit of that file system which the trials show, where another may be asked for."""
    readers_bytes_per_s: float | None = None
    """Where cores that read and decode limit input: what those of the most ranks' nodes give, whatever the storage."""
    staged: Literal["trials", "asked"] | None = None
    """Input comes from copies on each node: of the trials themselves, or of a what-if."""
    notes: tuple[str, ...] = ()
    """What else its prediction rests on."""
    batches: tuple[int, ...] = ()
    """Batches that its points were made of (`predict.batches`); empty: they were measured."""
    spread: tuple[float, float] = (0.0, 0.0)
    """How far a step may lie below and above such points, as shares, besides their noise."""
    refit_on_subset: "Callable[[float], Curve] | None" = None
    """The curve as its measurements up to so many ranks alone give it; None: nothing but its points was measured."""

    def upto(self, ranks: float) -> "Curve":
        """What would be known of it, had it not been measured at more ranks."""
        if self.refit_on_subset is not None:
            return self.refit_on_subset(ranks)
        return replace(self, points=tuple(point for point in self.points if point.ranks <= ranks))

    def au_scale(self, ranks: float) -> float | None:
        """Utilization over the share of a step that does not wait for input, between points; None where none has it."""
        known = {point.ranks: scale for point in self.points if (scale := point.au_scale) is not None}
        return float(np.interp(np.log2(ranks), np.log2([*known]), [*known.values()])) if known else None

    def samples(self, ranks: float) -> float:
        """Samples per step of all ranks."""
        return self.batch * ranks * self.data_share if self.kind == "weak" else self.batch

    @property
    def other_buckets(self) -> bool:
        """Whether its buckets are those of a what-if."""
        return self.overlap is not None and self.overlap.cap_bytes is not None

    @property
    def most_ranks(self) -> int:
        """The largest scale."""
        return max(point.ranks for point in self.points)


@dataclass(frozen=True)
class Outlook:
    """The prediction for one number of ranks; ends are those of the prediction interval (`interval`)."""

    ranks: int
    step_s: float
    low_s: float
    high_s: float
    load_s: float
    load_high_s: float
    parts: Mapping[str, float]
    """Seconds of compute, exchange, imbalance and load."""
    samples: float
    fraction_not_waiting: tuple[float, float, float]
    """Share of the step that does not wait for input: value, low, high."""
    au_scale: float | None = None

    @property
    def au(self) -> tuple[float, float, float]:
        """Utilization: value, low, high; that share, where none was measured."""
        value, low, high = (
            share * (1.0 if self.au_scale is None else self.au_scale) for share in self.fraction_not_waiting
        )
        return value, low, high


LEAST_BASE = 0.01
"""The least share of a step that is not waiting for input, whatever its waits add up to."""
