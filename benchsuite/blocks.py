"""How a trial's steps are laid out: ceiling blocks interleaved with loader blocks (C L C L C).

A loader block drains what the queue held before it counts, so that a full prefetch queue flatters nothing.
"""

import math
from dataclasses import dataclass

from benchsuite.spec import TrialSpec

LOADER_BLOCKS = 2
CEILING_BLOCKS = LOADER_BLOCKS + 1
SETTLING_STEPS = 1
"""Uncounted steps at the start of a ceiling block, while caches change over."""
STEADY_TURNS = 3
"""A loader block must cover this many turns of the queue to be called steady."""


@dataclass(frozen=True)
class Layout:
    """Steps per block: uncounted ones first, then counted ones."""

    ceiling_steps: int
    drained_steps: int
    loader_steps: int

    @property
    def loader_batches(self) -> int:
        """Batches of one rank that the loader blocks and the first batch take."""
        return 1 + LOADER_BLOCKS * (self.drained_steps + self.loader_steps)


def layout(spec: TrialSpec) -> Layout:
    """The layout of a trial's blocks."""
    return Layout(
        ceiling_steps=math.ceil(spec.measure.steps / CEILING_BLOCKS),
        drained_steps=spec.data.queue_batches + 1,
        loader_steps=math.ceil(spec.measure.steps / LOADER_BLOCKS),
    )


def steady_steps(spec: TrialSpec) -> int:
    """The least measure.steps for which each loader block covers STEADY_TURNS turns of the queue."""
    return LOADER_BLOCKS * STEADY_TURNS * max(spec.data.queue_batches, 1)


def reader_samples(spec: TrialSpec) -> tuple[int, int]:
    """Batches and samples that the busiest reader of a rank decodes in a trial, prefetched ones included."""
    batches = layout(spec).loader_batches + spec.data.queue_batches
    per_reader = math.ceil(batches / spec.data.readers)
    return per_reader, per_reader * spec.rank_batch
